"""Scores: `load` for rows in memory (over `load_predictor`), and files in, files out."""

from mmoe.predictor import Predictor, load_predictor
from mmoe.score.files import score_files
from mmoe.score.loaded import LoadedRun, load
from mmoe.score.top_rows import Top

__all__ = ["LoadedRun", "Predictor", "Top", "load", "load_predictor", "score_files"]
