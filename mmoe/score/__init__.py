"""Scores: a predictor for rows in memory, and files in, files out."""

from typing import Any

from mmoe.moved import moved
from mmoe.predictor import Predictor, load_predictor
from mmoe.score.files import score_files

__all__ = ["Predictor", "load_predictor", "score_files"]


def __getattr__(name: str) -> Any:
    return moved(name, __name__, {"RunDirectory": "mmoe.run"})
