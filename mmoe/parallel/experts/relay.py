"""What a rank does with outputs of rows that came from another host: what of them goes back there.

Rows that came go on inside the host with the picks that they came with, and their outputs come back
as pairs or as sums over one rank. Across go pairs as they are, and sums over the whole host.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mmoe import ops
from mmoe.ops import ReturnPlan
from mmoe.parallel.experts.exchange import Handle
from mmoe.parallel.experts.rows import Crossing


class WayHome(NamedTuple):
    """What `pack_returns` makes of the Z rows that came back inside the host.

    Attributes:
        back: Where each row that came back, or each sum of them, lies in what goes back across.
        slots_NGK: The rows that came back which a gate adds up, int32; −1 = none.
        weights_NGK: And how much of each.
    """

    back: ReturnPlan
    slots_NGK: Tensor
    weights_NGK: Tensor


def way_home(across: Handle, inside: Crossing, ranks_E: Tensor) -> WayHome:
    """Plans what goes back across, of what comes back inside the host.

    Args:
        across: What came.
        inside: How it went on. Where pairs go back across, pairs come back here.
        ranks_E: The rank of each expert of this host.
    """
    arrived, theirs = across.arrived, across.crossing.theirs
    picks_NGK, routes = arrived.picks_NGK, arrived.routes
    back = ops.return_plan(routes, theirs.table(picks_NGK.device))
    places_NGK, as_sums_NGK = _places(picks_NGK, inside, ranks_E)
    num_rows = sum(inside.ours.back)
    # One place more, of picks whose outputs go back in a sum; and the pair that unused picks read
    back_Z = picks_NGK.new_full((num_rows + 1,), -1)
    back_R1 = torch.cat([back.back_R, back_Z[:1]])
    back_of_pick_X = back_R1[routes.slots_BGK.flatten().long()]
    at_X = torch.where(back_of_pick_X >= 0, places_NGK.flatten(), num_rows)
    back_Z[at_X] = back_of_pick_X
    summed_NG1 = back.back_NG.unsqueeze(2) >= 0
    slots_NGK = torch.where(summed_NG1, places_NGK, -1)
    weights_NGK = arrived.weights_NGK
    if any(inside.ours.sums):
        # A sum serves all of its picks at once: the first of them takes it, as it is
        again_NGK = _again(slots_NGK, num_rows) & as_sums_NGK
        slots_NGK = slots_NGK.masked_fill(again_NGK, -1)
        weights_NGK = weights_NGK.masked_fill(as_sums_NGK, 1)
    return WayHome(ReturnPlan(back_Z[:-1], back.back_NG), slots_NGK.to(torch.int32), weights_NGK)


def _places(picks_NGK: Tensor, inside: Crossing, ranks_E: Tensor) -> tuple[Tensor, Tensor]:
    """Of each pick the row that comes back for it (−1: unused), and whether that is a sum."""
    ours, out = inside.ours, inside.out
    rank_NGK = ranks_E[picks_NGK.clamp(min=0).long()]
    _, _, _, pairs_W, sums_W, back_W = ours.table(picks_NGK.device)[:-1].unbind(1)
    as_sums_NGK = torch.tensor(ours.sums, device=picks_NGK.device)[rank_NGK]
    places_NGK = torch.where(
        as_sums_NGK,
        out.sums_BGK + (back_W - sums_W)[rank_NGK],
        out.pairs_BGK + (back_W - pairs_W)[rank_NGK],
    )
    return places_NGK.masked_fill(picks_NGK < 0, -1), as_sums_NGK


def _again(slots_NGK: Tensor, num_rows: int) -> Tensor:
    """Whether a pick before it has the same row."""
    slots_X = torch.where(slots_NGK < 0, num_rows, slots_NGK).flatten()
    numbers_X = torch.arange(len(slots_X), device=slots_X.device)
    first_Z = numbers_X.new_full((num_rows + 1,), len(slots_X))
    first_Z = first_Z.scatter_reduce(0, slots_X, numbers_X, "amin")
    return (first_Z[slots_X] < numbers_X).view(slots_NGK.shape)
