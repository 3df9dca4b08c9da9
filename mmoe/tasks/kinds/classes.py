"""One of several classes, or of levels in an order such as ratings."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec, TaskConfig
from mmoe.config.tasks import MulticlassTask, OrdinalTask
from mmoe.mixture import stable_sigmoid
from mmoe.tasks.kinds.base import LossRows, Objective, beside, log_odds


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

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the cross-entropy of each row."""
        return F.cross_entropy(rows.logits[t], rows.label_B.long(), reduction="none")

    def predictions(self, logits: Tensor, task: TaskConfig) -> Tensor:
        """Computes the likeliest class, and the probabilities of all."""
        probabilities_BC = logits.softmax(dim=1)
        return beside(logits.argmax(dim=1).to(logits.dtype), probabilities_BC)


class Ordinal(Objective):
    """Objective of levels 0 … C − 1 in an order: proportional odds, `P(y > k) = σ(z − θ_k)`.

    `ℓ = −ln (P(y > k − 1) − P(y > k))` of a row of level k. The thresholds
    `θ_0 < θ_1 < … < θ_{C − 2}` are the same for all rows: the first one and, through softplus, the
    steps between them are learnt with the tower, and start where every level is as likely at
    z = 0. The prediction is the expected level, in the label's own numbers; beside it stand the
    probabilities of all.

    Source: McCullagh, "Regression models for ordinal data" (JRSS B 42(2), 1980), equation 2.3;
        one logit with a bias a threshold is also the head of CORAL (Cao et al., Pattern Recognition
        Letters 140, 2020), whose loss is that of C − 1 binary tasks.
    """

    def num_logits(self, task: TaskConfig) -> int:
        """Returns 1."""
        return 1

    def num_constants(self, task: TaskConfig) -> int:
        """Returns the number of thresholds."""
        return len(task.further) - 1

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns 0, then the thresholds at which every level has its share."""
        levels = len(label.shares)
        above = [sum(label.shares[k:]) for k in range(1, levels)]
        theta = [-log_odds(share) for share in above]
        even = [math.log(k / (levels - k)) for k in range(1, levels)]
        raw = [theta[0] - even[0]] if theta else []
        for j in range(1, len(theta)):
            step = max(theta[j] - theta[j - 1], 1e-3)  # a level that no row has
            raw.append(_inverse_softplus(step) - _inverse_softplus(even[j] - even[j - 1]))
        return [0.0, *raw]

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the negative log-likelihood of each row."""
        task = tasks[t]
        assert isinstance(task, OrdinalTask)
        logit_B1, (theta_BJ, step_BJ) = rows.logits[t][:, :1], _thresholds(rows.logits[t])
        last = theta_BJ.shape[1]
        level_B1 = (rows.label_B[:, None] - task.lowest).long().clamp(0, last)  # 0 where unobserved
        under_B1, over_B1 = level_B1.clamp_max(last - 1), (level_B1 - 1).clamp_min(0)
        # σ(a) − σ(b) = σ(a) σ(−b) (1 − exp(b − a)), without the difference of two like numbers
        log_under_B1 = F.logsigmoid(theta_BJ.gather(1, under_B1) - logit_B1)
        log_over_B1 = F.logsigmoid(logit_B1 - theta_BJ.gather(1, over_B1))
        log_step_B1 = torch.log(-torch.expm1(-step_BJ.gather(1, under_B1)))
        is_first_B1, is_last_B1 = level_B1 == 0, level_B1 == last
        total_B1 = torch.where(is_last_B1, 0, log_under_B1)
        total_B1 = total_B1 + torch.where(is_first_B1, 0, log_over_B1)
        return -(total_B1 + torch.where(is_first_B1 | is_last_B1, 0, log_step_B1))[:, 0]

    def predictions(self, logits: Tensor, task: TaskConfig) -> Tensor:
        """Computes the expected level, and the probabilities of all."""
        assert isinstance(task, OrdinalTask)
        above_BJ = stable_sigmoid(logits[:, :1] - _thresholds(logits)[0])
        expected_B = torch.full_like(logits[:, 0], task.lowest)
        for above_B in above_BJ.unbind(1):  # in this order in every batch
            expected_B = expected_B + above_B
        one, zero = torch.ones_like(above_BJ[:, :1]), torch.zeros_like(above_BJ[:, :1])
        bounds = torch.cat([one, above_BJ, zero], dim=1)
        return beside(expected_B, (bounds[:, :-1] - bounds[:, 1:]).clamp_min(0))


def _inverse_softplus(y: float) -> float:
    return y + math.log(-math.expm1(-y))


def _thresholds(logits_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Thresholds of each row, and the steps that lead to them; the first step is not read."""
    raw_BJ = logits_BK[:, 1:]
    levels = raw_BJ.shape[1] + 1
    start = [math.log(k / (levels - k)) for k in range(1, levels)]
    theta, steps = [raw_BJ[:, 0] + start[0]], [torch.ones_like(raw_BJ[:, 0])]
    for j in range(1, levels - 1):
        at_start = math.log(math.expm1(start[j] - start[j - 1]))
        step_B = -F.logsigmoid(-raw_BJ[:, j] - at_start)  # softplus, with bits of the row alone
        steps.append(step_B + torch.finfo(raw_BJ.dtype).eps)
        theta.append(theta[-1] + steps[-1])
    return torch.stack(theta, dim=1), torch.stack(steps, dim=1)
