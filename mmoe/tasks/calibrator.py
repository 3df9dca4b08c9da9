"""The calibrator of AITM: what comes later is no more likely than what comes before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.tasks.columns import own_logits


class LabelLoss(Protocol):
    """A loss of a batch's logits that a module adds to those of the tasks."""

    def __call__(
        self, logits_BT: Tensor, observed_BT: Tensor, weights_BT: Tensor, out_of_T: Tensor
    ) -> Tensor:
        """Computes a scalar; arguments as those of `multi_task_loss`."""
        ...


@dataclass(frozen=True)
class Calibrator:
    """AITM's calibrator as a loss of all logits: `weight · calibrator_loss`.

    Attributes:
        weight: Its weight.
        pairs: Of tasks, the former and the later.
        tasks: Whose columns of logits these are.
    """

    weight: float
    pairs: Sequence[tuple[int, int]]
    tasks: Sequence[TaskConfig]

    def __call__(
        self, logits_BT: Tensor, observed_BT: Tensor, weights_BT: Tensor, out_of_T: Tensor
    ) -> Tensor:
        """Computes it."""
        logits = own_logits(logits_BT, self.tasks)
        loss = calibrator_loss(logits, observed_BT, weights_BT, self.pairs, out_of_T)
        return self.weight * loss


def calibrator_loss(
    logits: Sequence[Tensor],
    observed_BT: Tensor,
    weights_BT: Tensor,
    pairs: Sequence[tuple[int, int]],
    out_of_T: Tensor,
) -> Tensor:
    """Computes `Σ_(s, t) Σ_b w_bt max(σ(z_bt) − σ(z_bs), 0) / Σ_b w_bt` over rows with label t.

    Args:
        logits: `logit_B` of every task.
        observed_BT: Bool, where the label exists.
        weights_BT: Row weights.
        pairs: Of tasks, the former s and the later t.
        out_of_T: What each task's sum is divided by, as in `multi_task_loss`: parts of a batch,
            given the observed weights of all of it, add up to the loss of the whole.

    Returns:
        A scalar, in fp32 at least.

    Example:
        >>> import torch
        >>> from mmoe.tasks.calibrator import calibrator_loss
        >>> logits = [torch.zeros(2), torch.tensor([100.0, -100.0])]  # of click, of purchase
        >>> ones = torch.ones(2, 2)
        >>> calibrator_loss(logits, ones.bool(), ones, [(0, 1)], torch.tensor([2.0, 2.0]))
        tensor(0.2500)

    Source: Xi et al., "Modeling the sequential dependence among audience multi-step conversions
        with multi-task learning in targeted display advertising" (KDD 2021), the behavioural
        expectation calibrator; there every label is observed, and every weight 1.
    """
    dtype = torch.promote_types(logits[0].dtype, torch.float32)
    zero = torch.zeros((), dtype=dtype, device=logits[0].device)
    weights_BT, total = torch.where(observed_BT, weights_BT.to(dtype), zero), zero
    for former, later in pairs:
        excess_B = (logits[later].to(dtype).sigmoid() - logits[former].to(dtype).sigmoid()).relu()
        whole = torch.where(out_of_T[later] > 0, out_of_T[later], 1)
        total = total + (weights_BT[:, later] * excess_B).sum() / whole
    return total
