"""Tasks: heads, losses, predictions, and the metrics that judge them.

Names are imported on first use, so the metrics, which are NumPy, come without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmoe.tasks.curves import task_curves
    from mmoe.tasks.gate_statistics import GateStatistics
    from mmoe.tasks.heads import TaskTowers, Tower
    from mmoe.tasks.losses import LossSums, entire_space_sums, loss_sums, multi_task_loss
    from mmoe.tasks.metrics import higher_is_better, monitor_value, task_metrics
    from mmoe.tasks.predictions import predictions_from_logits

_HOMES = {
    "GateStatistics": "gate_statistics",
    "LossSums": "losses",
    "TaskTowers": "heads",
    "Tower": "heads",
    "entire_space_sums": "losses",
    "higher_is_better": "metrics",
    "loss_sums": "losses",
    "monitor_value": "metrics",
    "multi_task_loss": "losses",
    "predictions_from_logits": "predictions",
    "task_curves": "curves",
    "task_metrics": "metrics",
}

__all__ = [
    "GateStatistics",
    "LossSums",
    "TaskTowers",
    "Tower",
    "entire_space_sums",
    "higher_is_better",
    "loss_sums",
    "monitor_value",
    "multi_task_loss",
    "predictions_from_logits",
    "task_curves",
    "task_metrics",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"mmoe.tasks.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mmoe.tasks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
