"""Regression: squared error, and the logit itself."""

from collections.abc import Sequence

from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.tasks.kinds.base import Objective


class Regression(Objective):
    """`(z − y)²`."""

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Squared error."""
        return (logits[t] - label_B).square()

    def link(self, logits_BT: Tensor) -> Tensor:
        """As it is."""
        return logits_BT
