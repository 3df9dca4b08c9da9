"""Scores: a predictor for rows in memory, and files in, files out."""

from typing import Any

from mmoe.moved import moved
from mmoe.score.files import score_files
from mmoe.score.predictor import Predictor, load_predictor

__all__ = ["Predictor", "load_predictor", "score_files"]


def __getattr__(name: str) -> Any:
    return moved(name, __name__, {"RunDirectory": "mmoe.run"})
