"""One of several classes: softmax and cross-entropy."""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec
from mmoe.config.tasks import MulticlassTask, TaskConfig
from mmoe.tasks.kinds.base import Objective, beside


class Multiclass(Objective):
    """Objective of one of C classes: `−ln softmax(z)_y`.

    The prediction is the number of the likeliest class; beside it stand the probabilities of all.
    """

    def num_logits(self, task: TaskConfig) -> int:
        """Returns C."""
        assert isinstance(task, MulticlassTask)
        return len(task.further)

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the logarithm of each class's share."""
        return [math.log(max(share, 1e-6)) for share in label.shares]

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes the cross-entropy of each row."""
        return F.cross_entropy(logits[t], label_B.long(), reduction="none")

    def predictions(self, logits: Tensor, task: TaskConfig) -> Tensor:
        """Computes the likeliest class, and the probabilities of all."""
        probabilities_BC = logits.softmax(dim=1)
        return beside(logits.argmax(dim=1).to(logits.dtype), probabilities_BC)
