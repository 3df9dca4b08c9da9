"""Zero-inflated lognormal: values most of which are 0, with a long tail, such as spend."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec, TaskConfig
from mmoe.mixture import stable_sigmoid
from mmoe.tasks.kinds.base import LARGEST_LOG, LossRows, Objective, beside, log_odds

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
        """Returns the log-odds of a value above 0, and what the logarithms of these values have."""
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
