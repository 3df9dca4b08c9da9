"""`outbound_plan`: what a batch sends to which rank, every row once."""

from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.ops._checks import check_device, check_dims, check_int32
from mmoe.ops._library import define


class OutboundPlan(NamedTuple):
    """Plan of what one batch sends to which rank; all int32 but the sizes.

    Attributes:
        rows_M: Row n of the N that travel, rank by rank, inside by (source, sample): sample b of
            source s is b · S + s; −1 from row N on.
        entries_Q: The picks in use, as places in the flattened picks, by (row, gate, pick); −1
            behind them.
        codes_Q: The same as it travels: (g · K + k) · e + place, with e the experts of the rank it
            goes to and place the number of the picked one there; the first pick of a row as
            −1 − code, which tells rows apart.
        rows_BGK: The row that carries a pick; −1 = unused.
        pairs_BGK: Its distinct (sample, expert), rank by rank, inside by (expert, sample); −1.
        sums_BGK: Its distinct (row, gate), in that order; −1.
        sizes_W4: int64, how many rows, picks, pairs and sums belong to each rank.
    """

    rows_M: Tensor
    entries_Q: Tensor
    codes_Q: Tensor
    rows_BGK: Tensor
    pairs_BGK: Tensor
    sums_BGK: Tensor
    sizes_W4: Tensor


def outbound_plan(
    experts_BGK: Tensor, homes_E3: Tensor, num_ranks: int, num_sources: int
) -> OutboundPlan:
    """Sorts the picks of all gates by the rank that holds the expert.

    A sample travels to a rank once for each source that picked experts there read. The shapes
    depend on shapes alone (M = B · min(G · K, W · S, E), Q = B · G · K), so nothing is copied to
    the host.

    Args:
        experts_BGK: int32, the expert of every pick in [0, E), or −1 for a pick that is not used.
        homes_E3: int32, for each expert the rank that holds it, its number there (0, 1, … on every
            rank), and which source it reads.
        num_ranks: W.
        num_sources: S.

    Returns:
        The plan; deterministic, the same on CPU and CUDA.

    Raises:
        ValueError: On another shape, dtype or device, or (CPU) an expert outside [−1, E) or a table
            that puts an expert nowhere or two in one place. Codes must fit in int32: G · K times
            the experts of a rank.

    Example:
        Two samples, two gates, top-2 of three experts, the last of them on rank 1.

        >>> import torch
        >>> from mmoe.ops import outbound_plan
        >>> picks = torch.tensor([[[0, 2], [1, 2]], [[2, 0], [0, 1]]], dtype=torch.int32)
        >>> homes = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=torch.int32)
        >>> plan = outbound_plan(picks, homes, num_ranks=2, num_sources=1)
        >>> plan.rows_M.tolist(), plan.sizes_W4.tolist()
        ([0, 1, 0, 1], [[2, 5, 4, 4], [2, 3, 2, 3]])
    """
    check_dims("experts_BGK", experts_BGK, "BGK")
    check_int32("experts_BGK", experts_BGK)
    check_dims("homes_E3", homes_E3, ["E", "3"])
    check_int32("homes_E3", homes_E3)
    check_device("homes_E3", homes_E3, experts_BGK.device, "experts_BGK")
    return OutboundPlan(
        *torch.ops.mmoe.outbound_plan(experts_BGK, homes_E3, num_ranks, num_sources)
    )


def _fake(
    experts_BGK: Tensor, homes_E3: Tensor, num_ranks: int, num_sources: int
) -> tuple[Tensor, ...]:
    B, G, K = experts_BGK.shape
    picks = experts_BGK.new_empty
    rows_M = picks(B * min(G * K, num_ranks * num_sources, len(homes_E3)))
    slots = [picks(B, G, K) for _ in range(3)]
    sizes_W4 = picks(num_ranks, 4, dtype=torch.int64)
    return rows_M, picks(B * G * K), picks(B * G * K), *slots, sizes_W4


define(
    "outbound_plan(Tensor experts_BGK, Tensor homes_E3, int num_ranks, int num_sources)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
