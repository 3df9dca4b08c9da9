"""Tasks whose label is a number: squared error, Huber's, watch time and its quantile, spend."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec, TaskConfig
from mmoe.config.tasks import HuberTask, WatchTimeTask
from mmoe.mixture import stable_sigmoid
from mmoe.tasks.kinds.base import LARGEST_LOG, LossRows, Objective, OneLogit, beside, log_odds


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
    (`mmoe.datasets.labels.watch_quantiles`): that at the expected quantile, which is rather a
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


_LEAST_SIGMA = math.sqrt(torch.finfo(torch.float32).eps)  # as in the authors' code


class Ziln(Objective):
    """Objective of values y ≥ 0: −ln of a lognormal density where y > 0, with a mass at 0.

    Of the logits (a, μ, s), `p = σ(a)`, `σ = softplus(s)`:

    `ℓ = −ln (1 − p)` of a row of 0, else `−ln p + ln (y σ √(2π)) + (ln y − μ)² / (2 σ²)`.

    The prediction is the mean, `p · exp(μ + σ² / 2)`; beside it stands p, the chance of a value
    above 0.

    Source: Wang, Liu and Miao, "A deep probabilistic model for customer lifetime value prediction"
        (arXiv 1912.07753, 2019), equations 2 to 5.
    """

    def num_logits(self, task: TaskConfig) -> int:
        """Returns 3: a, μ and s."""
        return 3

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the log-odds of a value above 0, and its logarithm's mean and deviation."""
        sigma = max(label.log_deviation, 0.1)  # of few values alike: none that is soon overrun
        return [log_odds(label.positive), label.log_mean, math.log(math.expm1(sigma))]

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the negative log-likelihood of each row."""
        (a_B, mu_B, s_B), label_B = rows.logits[t].unbind(1), rows.label_B
        is_positive_B = label_B > 0
        sigma_B = F.softplus(s_B).clamp_min(_LEAST_SIGMA)
        log_B = torch.where(is_positive_B, label_B, 1).log()  # a log of 0 would spread as 0 · inf
        density_B = 0.5 * ((log_B - mu_B) / sigma_B).square() + sigma_B.log() + log_B
        of_positive_B = F.softplus(-a_B) + density_B + 0.5 * math.log(2 * math.pi)
        return torch.where(is_positive_B, of_positive_B, F.softplus(a_B))

    def predictions(self, logits: Tensor, task: TaskConfig) -> Tensor:
        """Computes the mean, and the chance of a value above 0."""
        a_B, mu_B, s_B = logits.unbind(1)
        p_B = stable_sigmoid(a_B)
        sigma_B = (-F.logsigmoid(-s_B)).clamp_min(_LEAST_SIGMA)  # bits of the row alone
        # One exponent: p · exp(…) would be 0 · inf far out. At most what fp32 holds
        log_B = F.logsigmoid(a_B) + mu_B + sigma_B.square() / 2
        return beside(log_B.clamp_max(LARGEST_LOG).exp(), p_B[:, None])
