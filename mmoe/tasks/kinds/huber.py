"""Huber: squared error near the label, absolute error far from it."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mmoe.config.tasks import HuberTask, TaskConfig
from mmoe.tasks.kinds.regression import Regression


class Huber(Regression):
    """Objective of regression with outliers: `e²` up to `delta`, `δ (2 |e| − δ)` beyond, e = z − y.

    Twice Huber's loss, so that it is the squared error of kind regression near the label, and one
    `weight` means the same there.

    Source: Huber, "Robust estimation of a location parameter" (Ann. Math. Statist. 35, 1964).
    """

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes the loss of each row."""
        task = tasks[t]
        assert isinstance(task, HuberTask)
        return 2 * F.huber_loss(logits[t], label_B, reduction="none", delta=task.delta)
