"""Tasks: towers, losses, predictions out of logits, and what gates do for each task."""

from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.tasks.masked_loss import LossSums, loss_sums, multi_task_loss
from mmoe.tasks.predictions import predictions_from_logits
from mmoe.tasks.towers import TaskTowers, Tower

__all__ = [
    "GateStatistics",
    "LossSums",
    "TaskTowers",
    "Tower",
    "loss_sums",
    "multi_task_loss",
    "predictions_from_logits",
]
