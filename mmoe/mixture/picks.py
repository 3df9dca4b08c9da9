"""A gate's decision in its two forms: a weight for every expert, or K picks with weights."""

import torch
from torch import Tensor

from mmoe.mixture.gates import GateOutput


def visible_experts(visibility_GE: Tensor) -> Tensor:
    """The experts that each gate sees, in order, as picks: `[G, V]` int32, −1 fills the rest.

    Example:
        >>> import torch
        >>> from mmoe.mixture.picks import visible_experts
        >>> visible_experts(torch.tensor([[True, False, True], [False, False, True]])).tolist()
        [[0, 2], [2, -1]]
    """
    num_experts = visibility_GE.shape[1]
    numbers_GE = torch.where(visibility_GE, torch.arange(num_experts), num_experts)
    widest = int(visibility_GE.sum(1).max())
    numbers_GV = numbers_GE.sort(dim=1).values[:, :widest]
    return numbers_GV.masked_fill(numbers_GV == num_experts, -1).to(torch.int32)


def as_weights(decision: GateOutput, num_experts: int) -> Tensor:
    """`weights_BGE` of either form; experts that were not picked get exactly 0."""
    if decision.experts is None:
        return decision.weights
    weights_BGK = decision.weights.masked_fill(decision.experts < 0, 0)
    weights_BGE = weights_BGK.new_zeros(*weights_BGK.shape[:2], num_experts)
    return weights_BGE.scatter_add(-1, decision.experts.clamp(min=0).long(), weights_BGK)


def as_picks(decision: GateOutput, visible_GV: Tensor) -> tuple[Tensor, Tensor]:
    """`experts_BGK` and `weights_BGK` of either form; dense weights pick every visible expert."""
    if decision.experts is not None:
        return decision.experts, decision.weights
    experts_BGV = visible_GV.expand(decision.weights.shape[0], -1, -1)
    return experts_BGV, decision.weights.gather(-1, experts_BGV.clamp(min=0).long())
