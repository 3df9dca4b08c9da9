"""Binary tasks: cross-entropy loss, and the sigmoid as link."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.mixture.batch_invariant import stable_sigmoid
from mmoe.tasks.kinds.base import OneLogit


class Binary(OneLogit):
    """Objective of binary tasks: `−y ln σ(z) − (1 − y) ln σ(−z)`."""

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes the cross-entropy of each row."""
        return F.binary_cross_entropy_with_logits(logits[t], label_B, reduction="none")

    def link(self, logit_B: Tensor) -> Tensor:
        """Turns logits into probabilities."""
        return stable_sigmoid(logit_B)
