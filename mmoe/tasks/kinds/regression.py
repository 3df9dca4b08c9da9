"""Regression: squared error, and the logit itself as prediction."""

from collections.abc import Sequence

from torch import Tensor

from mmoe.config import LabelSpec
from mmoe.config.tasks import TaskConfig
from mmoe.tasks.kinds.base import OneLogit


class Regression(OneLogit):
    """Objective of regression: `(z − y)²`."""

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the mean: 0 where labels are centred."""
        return [label.mean]

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes the squared error of each row."""
        return (logits[t] - label_B).square()

    def link(self, logit_B: Tensor) -> Tensor:
        """Returns the logits as they are."""
        return logit_B
