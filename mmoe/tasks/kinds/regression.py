"""Regression: squared error, and the logit itself as prediction."""

from collections.abc import Sequence

from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.tasks.kinds.base import OneLogit


class Regression(OneLogit):
    """Objective of regression: `(z − y)²`."""

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes the squared error of each row."""
        return (logits[t] - label_B).square()

    def link(self, logit_B: Tensor) -> Tensor:
        """Returns the logits as they are."""
        return logit_B
