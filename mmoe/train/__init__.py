"""Training: from a config to a run directory."""

from mmoe.errors import Interrupted
from mmoe.train.evaluate import evaluate_run
from mmoe.train.fit import FinishedRun, train_run
from mmoe.train.prepare import PreparedData, prepare
from mmoe.train.warm_start import WarmStart

__all__ = [
    "FinishedRun",
    "Interrupted",
    "PreparedData",
    "WarmStart",
    "evaluate_run",
    "prepare",
    "train_run",
]
