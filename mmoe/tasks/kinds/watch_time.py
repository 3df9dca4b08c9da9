"""Watch time: weighted logistic regression, whose odds are the expected time; D2Q's quantiles."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec, TaskConfig
from mmoe.config.tasks import WatchTimeTask
from mmoe.mixture import stable_sigmoid
from mmoe.tasks.kinds.base import LARGEST_LOG, LossRows, OneLogit


class WatchTime(OneLogit):
    """Objective of seconds watched, T: `−T ln σ(z) − ln σ(−z)`, the odds being the expected time.

    The prediction is the odds, `exp(z)`. Of N rows alike the loss is least at
    `exp(z) = Σ T / N = E[T]`. With the paper's `negatives: unwatched` the second term is that of
    rows of time 0 alone; then it is least at `Σ T / (N − k) = E[T] / (1 − P(watched))` where k are
    watched: the expected time where these are few, and too much where they are many.

    The loss is in units of the label: by default T is in units of its mean (`target: standard`),
    so that the loss is about that of a binary task. Seconds (`target: none`) make it some hundred
    times that.

    Source: Covington et al., "Deep neural networks for YouTube recommendations" (RecSys 2016),
        section 4.2.
    """

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the logarithm of the odds at which the loss of all rows is least."""
        assert isinstance(task, WatchTimeTask)
        negative = 1 - label.positive if task.negatives == "unwatched" else 1.0
        return [math.log(label.mean / negative)] if label.mean > 0 and negative > 0 else []

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the weighted cross-entropy of each row."""
        task, logit_B, label_B = tasks[t], rows.logits[t], rows.label_B
        assert isinstance(task, WatchTimeTask)
        is_negative_B = torch.ones_like(label_B)
        if task.negatives == "unwatched":
            is_negative_B = (label_B == 0).to(label_B.dtype)
        return label_B * F.softplus(-logit_B) + is_negative_B * F.softplus(logit_B)

    def link(self, logit_B: Tensor) -> Tensor:
        """Turns logits into odds."""
        return logit_B.clamp_max(LARGEST_LOG).exp()


class D2Q(OneLogit):
    """Objective of a quantile q from 0 to 1: `(σ(z) − q)²`.

    Longer videos are watched longer, whoever watches: of the watch time the network learns only
    what is left when the duration's share is taken away. What the model outputs is a quantile;
    whoever has the row's duration makes a watch time of it
    (`mmoe.datasets.labels.targets`): that at the expected quantile, which is rather a
    median than a mean.

    Source: Zhan et al., "Deconfounding duration bias in watch-time prediction for video
        recommendation" (KDD 2022), section 4.2 and algorithm 1.
    """

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the squared error of each row's quantile."""
        return (rows.logits[t].sigmoid() - rows.label_B).square()

    def link(self, logit_B: Tensor) -> Tensor:
        """Turns logits into quantiles."""
        return stable_sigmoid(logit_B)
