"""Scores: `load` for rows in memory (over `load_predictor`), and files in, files out."""

from mmoe.predictor import Predictor, load_predictor
from mmoe.score.files import score_files
from mmoe.score.loaded import LoadedRun, load
from mmoe.score.scorer import ScoreRequest
from mmoe.score.top_rows import Top

__all__ = ["LoadedRun", "Predictor", "ScoreRequest", "Top", "load", "load_predictor", "score_files"]
