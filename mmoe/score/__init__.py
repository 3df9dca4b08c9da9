"""Runs and their scores: open a run directory, predict, score files."""

from mmoe.score.files import score_files
from mmoe.score.predictor import Predictor, load_predictor
from mmoe.score.run_directory import RunDirectory

__all__ = ["Predictor", "RunDirectory", "load_predictor", "score_files"]
