"""What a rank sends out: its rows, once for each rank that has an expert for them, and the picks.

Letters beside those of the mixture: W ranks, S sources, N rows that travel (distinct sample, source
and rank), Q picks in use, M partial sums (distinct row and gate), C = W · S lanes.
"""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture import DispatchPlan
from mmoe.mixture.dispatcher import source_places
from mmoe.mixture.routes import plan_routes
from mmoe.parallel.expert_placement import ExpertPlacement

# Codes of picks are int32.
CODES = 2**31


class Outbound(NamedTuple):
    """One batch, sorted by where it goes.

    Attributes:
        rows: Row n of the N that travel, rank by rank, inside by source and sample; a lane is a
            (rank, source). `slots_BGK` is the row that carries a pick.
        pairs: The distinct (sample, expert), rank by rank, inside by expert and sample.
        ranks_BGK: Who holds the picked expert; 0 for an unused pick.
        lanes_BGK: The lane of a pick, int32; −1 = unused.
        sums_BGK: Partial sum that a pick is part of, in the order of (row, gate); −1 = unused.
        entries_Q: The picks in use, as places in the flattened picks, by (row, gate, pick).
        ranks_Q: Where each of them goes; never falls.
        codes_Q: The same as it travels, int32, see `encode`.
        sizes_W4: `Sizes` for each rank, int64.
    """

    rows: ops.RoutePlan
    pairs: ops.RoutePlan
    ranks_BGK: Tensor
    lanes_BGK: Tensor
    sums_BGK: Tensor
    entries_Q: Tensor
    ranks_Q: Tensor
    codes_Q: Tensor
    sizes_W4: Tensor


def plan_outbound(plan: DispatchPlan, placement: ExpertPlacement) -> Outbound:
    """Sorts a batch by where it goes; a rank is planned as if it were an expert.

    Args:
        plan: The picks of all gates.
        placement: Who holds which expert.

    Returns:
        The plan. Nothing was sent.

    Raises:
        ValueError: Picks that do not fit into int32 codes.

    Example:
        Two samples, two gates, top-2 of three experts, the last of them on rank 1.

        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> from mmoe.parallel import ExpertPlacement
        >>> from mmoe.parallel.outbound import plan_outbound
        >>> picks = [[[0, 2], [1, 2]], [[2, 0], [0, 1]]]
        >>> plan = DispatchPlan(
        ...     experts_BGK=torch.tensor(picks, dtype=torch.int32),
        ...     weights_BGK=torch.full((2, 2, 2), 0.5),
        ...     num_experts=3,
        ...     expert_source=(0, 0, 0),
        ... )
        >>> out = plan_outbound(plan, ExpertPlacement.even(3, 2))
        >>> out.rows.rows_P.tolist(), out.sizes_W4.tolist()
        ([0, 1, 0, 1], [[2, 5, 4, 4], [2, 3, 2, 3]])
    """
    experts_BGK, W = plan.experts_BGK, placement.num_ranks
    _check_codes(experts_BGK, placement)
    device, S = experts_BGK.device, len(set(plan.expert_source))
    source_E = source_places(plan.expert_source).to(device)
    rank_E = torch.tensor(placement.ranks, device=device)
    order_E = torch.tensor(placement.order, device=device).argsort()
    unused_BGK, at_BGK = experts_BGK < 0, experts_BGK.clamp(min=0).long()

    def of_picks(values_E: Tensor) -> Tensor:
        return values_E[at_BGK].masked_fill(unused_BGK, -1).to(torch.int32)

    lanes_BGK = of_picks(rank_E * S + source_E)
    rows = plan_routes(lanes_BGK, W * S)
    pairs = plan_routes(of_picks(order_E), plan.num_experts)

    entries_Q, rows_Q = _entries(rows.slots_BGK)
    ranks_Q = rank_E[experts_BGK.flatten()[entries_Q].long()]
    gates_Q = entries_Q // experts_BGK.shape[2] % experts_BGK.shape[1]
    begins_Q = _begins(rows_Q) | _begins(gates_Q)
    sums_BGK = torch.full_like(experts_BGK, -1).flatten()
    sums_BGK[entries_Q] = (begins_Q.cumsum(0) - 1).to(torch.int32)
    bounds = [0, *accumulate(len(own) for own in placement.experts)]
    sizes_W4 = torch.stack(
        [
            rows.offsets_E1[::S].diff().long(),
            ranks_Q.bincount(minlength=W),
            pairs.offsets_E1[bounds].diff().long(),
            ranks_Q[begins_Q].bincount(minlength=W),
        ],
        dim=1,
    )
    return Outbound(
        rows=rows,
        pairs=pairs,
        ranks_BGK=rank_E[at_BGK].masked_fill(unused_BGK, 0),
        lanes_BGK=lanes_BGK,
        sums_BGK=sums_BGK.view_as(experts_BGK),
        entries_Q=entries_Q,
        ranks_Q=ranks_Q,
        codes_Q=encode(experts_BGK, entries_Q, _begins(rows_Q), placement),
        sizes_W4=sizes_W4,
    )


def encode(
    experts_BGK: Tensor, entries_Q: Tensor, first_Q: Tensor, placement: ExpertPlacement
) -> Tensor:
    """Picks as they travel: four bytes for one, nothing for unused ones.

    code = (g · K + k) · e + place, with e the experts of the rank it goes to and place the number
    of the picked one there; the first pick of a row is sent as −1 − code, which tells rows apart.

    Args:
        experts_BGK: The picks.
        entries_Q: Those in use, by row.
        first_Q: Which of them is the first of its row.
        placement: Who holds which expert.

    Returns:
        `codes_Q`, int32.
    """
    device = experts_BGK.device
    held_E = torch.tensor([len(placement.on(r)) for r in placement.ranks], device=device)
    place_E = torch.tensor(placement.places, device=device)
    expert_Q = experts_BGK.flatten()[entries_Q].long()
    picks = experts_BGK.shape[1] * experts_BGK.shape[2]
    codes_Q = entries_Q % picks * held_E[expert_Q] + place_E[expert_Q]
    return torch.where(first_Q, -1 - codes_Q, codes_Q).to(torch.int32)


def decode(codes_Q: Tensor, rows: int, num_experts: int, picks: tuple[int, int]) -> Tensor:
    """The opposite of `encode`, on the rank where the picks arrive.

    Args:
        codes_Q: From all ranks, in the order of the rows.
        rows: N.
        num_experts: e, held here.
        picks: G and K.

    Returns:
        `picks_NGK`: experts by their number here, int32; −1 = picked none here.

    Example:
        >>> import torch
        >>> from mmoe.parallel.outbound import decode
        >>> codes_Q = torch.tensor([-1, 5, -4], dtype=torch.int32)
        >>> decode(codes_Q, rows=2, num_experts=2, picks=(2, 2)).tolist()
        [[[0, -1], [1, -1]], [[-1, 1], [-1, -1]]]
    """
    rows_Q = (codes_Q < 0).cumsum(0) - 1
    codes_Q = torch.where(codes_Q < 0, -1 - codes_Q, codes_Q).long()
    picks_NX = codes_Q.new_full((rows, picks[0] * picks[1]), -1)
    picks_NX[rows_Q, codes_Q // max(num_experts, 1)] = codes_Q % max(num_experts, 1)
    return picks_NX.view(rows, *picks).to(torch.int32)


def _entries(slots_BGK: Tensor) -> tuple[Tensor, Tensor]:
    """The picks in use, by (row, gate, pick), as places in the flattened picks; and their rows."""
    entries_Q = (slots_BGK >= 0).flatten().nonzero().squeeze(1)
    rows_Q = slots_BGK.flatten()[entries_Q]
    order_Q = rows_Q.argsort(stable=True)
    return entries_Q[order_Q], rows_Q[order_Q]


def _begins(values_Q: Tensor) -> Tensor:
    """Where a value differs from the one before."""
    begins_Q = torch.ones_like(values_Q, dtype=torch.bool)
    begins_Q[1:] = values_Q[1:] != values_Q[:-1]
    return begins_Q


def _check_codes(experts_BGK: Tensor, placement: ExpertPlacement) -> None:
    G, K = experts_BGK.shape[1:]
    most = max(map(len, placement.experts))
    if G * K * most > CODES:
        raise ValueError(
            f"experts_BGK: expected {G} gates × {K} picks × {most} experts of a rank to fit in "
            "int32 codes; spread the experts over more ranks"
        )
