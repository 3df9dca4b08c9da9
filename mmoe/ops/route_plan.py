"""`route_plan`: which sample goes to which expert, every distinct pair once."""

from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.ops._checks import check_dims, check_int32
from mmoe.ops._library import define


class RoutePlan(NamedTuple):
    """Plan of a batch's distinct (sample, expert) pairs, by expert, then by sample.

    Attributes:
        rows_P: int32, the sample of pair i; -1 from the last pair (number R = offsets_E1[E]) on.
        offsets_E1: int32, expert e owns the pairs from offsets_E1[e] up to offsets_E1[e + 1].
        slots_BGK: int32, the pair that serves a pick; -1 for a pick that is not used.
    """

    rows_P: Tensor
    offsets_E1: Tensor
    slots_BGK: Tensor


def route_plan(experts_BGK: Tensor, num_experts: int) -> RoutePlan:
    """Numbers the distinct (sample, expert) pairs that the gates' picks need.

    Pairs are ordered by (expert, sample) and none occurs twice, however many gates asked for it:
    slots[b, g, k] = #{(e, s) wanted : (e, s) < (experts[b, g, k], b)}. The shapes depend on shapes
    alone (P = B * min(G * K, E)), so nothing is copied to the host.

    Args:
        experts_BGK: int32, the expert of every pick in [0, E), or -1 for a pick that is not used.
        num_experts: E, from 1 to 2,147,483,647.

    Returns:
        The plan; deterministic, the same on CPU and CUDA.

    Raises:
        ValueError: On another shape or dtype, or (CPU) an expert outside [-1, E). On a GPU such an
            expert stops the kernel, as an index out of range does in PyTorch.

    Example:
        >>> import torch
        >>> from mmoe.ops import route_plan
        >>> picks = torch.tensor([[[0], [2]], [[2], [2]]], dtype=torch.int32)  # 2 samples, 2 gates
        >>> plan = route_plan(picks, num_experts=3)
        >>> plan.rows_P.tolist(), plan.offsets_E1.tolist()
        ([0, 0, 1, -1], [0, 1, 1, 3])
        >>> plan.slots_BGK.flatten().tolist()
        [0, 1, 2, 2]
    """
    check_dims("experts_BGK", experts_BGK, "BGK")
    check_int32("experts_BGK", experts_BGK)
    B, G, K = experts_BGK.shape
    if G < 1 or K < 1:
        raise ValueError(
            f"experts_BGK: expected at least one gate and one pick, got shape {[B, G, K]}"
        )
    if not 1 <= num_experts < 2**31:
        raise ValueError(f"num_experts: expected 1 to {2**31 - 1}, got {num_experts}")
    pairs = B * min(G * K, num_experts)
    # In a trace B may be any number, which the comparison would bound; the kernels check as well.
    if not torch.compiler.is_compiling() and pairs >= 2**31:
        raise ValueError(
            f"experts_BGK: {pairs} pairs do not fit in int32; split the batch of {B} samples"
        )
    return RoutePlan(*torch.ops.mmoe.route_plan(experts_BGK, num_experts))


def _fake(experts_BGK: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    B, G, K = experts_BGK.shape
    rows_P = experts_BGK.new_empty(B * min(G * K, num_experts))
    return rows_P, experts_BGK.new_empty(num_experts + 1), experts_BGK.new_empty(B, G, K)


define("route_plan(Tensor experts_BGK, int num_experts) -> (Tensor, Tensor, Tensor)", _fake)
