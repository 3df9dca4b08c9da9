"""`ExpertLoads`: how many rows experts computed, by which they are placed anew."""

import torch
from torch import Tensor

from mmoe.mixture import DispatchPlan


class ExpertLoads:
    """Counts the rows of each expert, over the batches of this rank.

    A row that several gates pick an expert for is computed once, and counted once. Rows are counted
    while gradients are enabled: what is scored between epochs is no load of training.

    Args:
        num_experts: E; of slices, where experts are cut.

    Attributes:
        counts_E: int64, since the last `take`.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> from mmoe.parallel.experts.moves.loads import ExpertLoads
        >>> loads = ExpertLoads(3)
        >>> picks = torch.tensor([[[0, 2], [2, -1]], [[2, 1], [1, 2]]], dtype=torch.int32)
        >>> weights = torch.ones(2, 2, 2)
        >>> loads.count(
        ...     DispatchPlan(
        ...         experts_BGK=picks,
        ...         weights_BGK=weights,
        ...         num_experts=3,
        ...         expert_source=(0, 0, 0),
        ...     )
        ... )
        >>> loads.take().tolist(), loads.take().tolist()
        ([1, 1, 2], [0, 0, 0])
    """

    def __init__(self, num_experts: int) -> None:
        self.counts_E = torch.zeros(num_experts, dtype=torch.int64)

    def count(self, plan: DispatchPlan) -> None:
        """Adds the distinct (row, expert) pairs of a batch; nothing waits for a GPU here."""
        if not torch.is_grad_enabled():
            return
        pairs_E = pairs_of_experts(plan)
        self.counts_E = self.counts_E.to(pairs_E.device) + pairs_E

    def take(self) -> Tensor:
        """Returns the counts, and begins anew."""
        counts_E, self.counts_E = self.counts_E, torch.zeros_like(self.counts_E)
        return counts_E


def pairs_of_experts(plan: DispatchPlan) -> Tensor:
    """Returns how many rows each expert is picked for, `[E]` int64: a row counts once."""
    picks_BP = plan.experts_BGK.flatten(1).long()
    # An unused pick, −1, goes to a column behind the last expert
    picks_BP = torch.where(picks_BP < 0, plan.num_experts, picks_BP)
    asked_BX = picks_BP.new_zeros(len(picks_BP), plan.num_experts + 1, dtype=torch.bool)
    asked_BX.scatter_(1, picks_BP, True)
    return asked_BX.sum(0)[:-1]
