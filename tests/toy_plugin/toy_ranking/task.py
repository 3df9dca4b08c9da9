"""A task kind: counts, whose logarithm the network gives."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

import mmoe.register
from mmoe.config import TaskConfig
from mmoe.metrics import Column, ObservedRows, TaskKind, TaskMetrics
from mmoe.metrics.columns import ROWS
from mmoe.metrics.task_kinds.base import LabelColumn, empty_reason
from mmoe.tasks.kinds import LossRows, OneLogit


class CountTask(TaskConfig):
    """A count: 0, 1, 2, …"""

    kind: Literal["count"] = "count"
    exposure: float = Field(default=1.0, gt=0, description="counts are of so long a time")


class Counts(TaskKind):
    """Judged by the deviance of a Poisson distribution."""

    is_event = False
    monitored: ClassVar = {"deviance": False}
    calibration_keys = ("deviance",)
    expected_label = "0 or more"
    expected_prediction = "a number above 0"
    columns = (Column(key="deviance", heading="deviance", meaning="lower is better",
                      title="deviance"), ROWS)  # fmt: skip

    def numbers(self, label: LabelColumn) -> np.ndarray:
        return label.data.astype(np.float64)

    def wrong_labels(self, labels: np.ndarray) -> np.ndarray:
        return ~(labels >= 0)

    def wrong_predictions(self, predictions: np.ndarray) -> np.ndarray:
        return predictions <= 0

    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        reason = empty_reason(rows)
        if reason is not None:
            return TaskMetrics({"deviance": None, "rows": 0}, [f"{name}: {reason}"])
        y, p = rows.labels, rows.predictions
        logs = np.where(y > 0, y * np.log(np.maximum(y, 1) / p), 0)
        deviance = 2 * np.average(logs - (y - p), weights=rows.weights)
        return TaskMetrics({"deviance": float(deviance), "rows": len(rows)}, [])


@mmoe.register.task_kind("count", CountTask, judge=Counts)
class Count(OneLogit):
    """`exp(z) · exposure − y z`."""

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        task = tasks[t]
        assert isinstance(task, CountTask)
        return task.exposure * torch.exp(rows.logits[t]) - rows.label_B * rows.logits[t]

    def link(self, logit_B: Tensor) -> Tensor:
        return torch.exp(logit_B)
