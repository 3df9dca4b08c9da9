"""Binary tasks: cross-entropy loss, and the sigmoid as link."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec, TaskConfig
from mmoe.mixture import stable_sigmoid
from mmoe.tasks.kinds.base import LossRows, OneLogit, log_odds


class Binary(OneLogit):
    """Objective of binary tasks: `−y ln σ(z) − (1 − y) ln σ(−z)`."""

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the log-odds of the base rate."""
        return [log_odds(label.mean)]

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the cross-entropy of each row."""
        return binary_losses(rows.logits[t], rows.label_B)

    def link(self, logit_B: Tensor) -> Tensor:
        """Turns logits into probabilities."""
        return stable_sigmoid(logit_B)


def binary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Computes the cross-entropy of each number, of one task or of many side by side.

    Example:
        >>> import torch
        >>> binary_losses(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
        tensor([[0.6931, 0.6931]])
    """
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
