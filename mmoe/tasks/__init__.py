"""Tasks: towers, losses, predictions out of logits, and what gates do for each task."""

from typing import Any

from mmoe.moved import moved
from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.tasks.masked_loss import (
    LossSums,
    entire_space_sums,
    loss_sums,
    multi_task_loss,
)
from mmoe.tasks.predictions import predictions_from_logits
from mmoe.tasks.towers import TaskTowers, Tower

__all__ = [
    "GateStatistics",
    "LossSums",
    "TaskTowers",
    "Tower",
    "entire_space_sums",
    "loss_sums",
    "multi_task_loss",
    "predictions_from_logits",
]

_MOVED = ("higher_is_better", "monitor_value", "task_curves", "task_metrics")


def __getattr__(name: str) -> Any:
    return moved(name, __name__, dict.fromkeys(_MOVED, "mmoe.metrics"))
