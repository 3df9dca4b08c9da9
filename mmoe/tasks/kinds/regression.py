"""Regression: squared error, or Huber's, and the logit itself as prediction."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec, TaskConfig
from mmoe.config.tasks import HuberTask
from mmoe.tasks.kinds.base import LossRows, OneLogit


class Regression(OneLogit):
    """Objective of regression: `(z − y)²`."""

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the mean: 0 where labels are centred."""
        return [label.mean]

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the squared error of each row."""
        return (rows.logits[t] - rows.label_B).square()

    def link(self, logit_B: Tensor) -> Tensor:
        """Returns the logits as they are."""
        return logit_B


class Huber(Regression):
    """Objective of regression with outliers: `e²` up to `delta`, `δ (2 |e| − δ)` beyond, e = z − y.

    Twice Huber's loss, so that it is the squared error of kind regression near the label, and one
    `weight` means the same there.

    Source: Huber, "Robust estimation of a location parameter" (Ann. Math. Statist. 35, 1964).
    """

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the loss of each row."""
        task = tasks[t]
        assert isinstance(task, HuberTask)
        z_B = rows.logits[t]
        return 2 * F.huber_loss(z_B, rows.label_B, reduction="none", delta=task.delta)
