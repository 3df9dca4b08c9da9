"""What a rank does with rows that came from another host: what goes on inside its own, and back.

A row that came is one sample and source. Where sums go back to the host that it came from, its
gates ask for what they asked for there, and what they get is what goes back. Where pairs go back,
each of its distinct experts is asked for by a gate of its own, with weight 1: a *column*.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mmoe import ops
from mmoe.mixture import DispatchPlan
from mmoe.mixture.routing.routes import experts_of_pairs
from mmoe.ops import ReturnPlan
from mmoe.parallel.experts.exchange import Handle
from mmoe.parallel.experts.links import WayCosts
from mmoe.parallel.experts.rows import Crossing


class Relayed(NamedTuple):
    """What goes on inside the host.

    Attributes:
        plan: Picks of the host's experts, C gates or columns and K picks of each.
        back: Where the pairs and sums that came as picks go back to.
        cells_R: For each of those pairs its place in the flattened picks of `plan`, int64; None
            where only sums go back.
        sums_N11: Whether sums go back for a row.
    """

    plan: DispatchPlan
    back: ReturnPlan
    cells_R: Tensor | None
    sums_N11: Tensor


class WayHome(NamedTuple):
    """What `pack_returns` makes of the Z rows that came back inside the host.

    Attributes:
        back: Where each row that came back, or each sum of them, lies in what goes back across.
        slots_NGK: The rows that came back which a gate adds up.
        weights_NGK: And how much of each.
    """

    back: ReturnPlan
    slots_NGK: Tensor
    weights_NGK: Tensor


def gates_inside(costs: WayCosts, num_experts: int) -> tuple[int, int]:
    """Returns C and K of what goes on: the same on all ranks of a host, whatever came.

    Args:
        costs: Of the exchange between hosts.
        num_experts: On this host.

    Example:
        >>> from mmoe.parallel.experts.links import WayCosts
        >>> from mmoe.parallel.experts.relay import gates_inside
        >>> costs = WayCosts("auto", 64, 4, weight_bytes=4, by_batch=True, picks=(2, 3))
        >>> gates_inside(costs, 4), gates_inside(costs._replace(way="sums"), 4)
        ((4, 3), (2, 3))
    """
    G, K = costs.picks
    if costs.way == "sums":
        return G, K
    bounds = [G * K, num_experts]
    # How many distinct experts of this host a row has at most
    columns = min(bounds if costs.bound is None else [*bounds, costs.bound])
    return (columns, 1) if costs.way == "pairs" else (max(G, columns), K)


def relayed(came: Handle, costs: WayCosts, num_experts: int) -> Relayed:
    """Plans how rows that came go on.

    Args:
        came: Over the links between hosts.
        costs: Of that exchange.
        num_experts: On this host, 1 or more.
    """
    theirs, arrived = came.crossing.theirs, came.arrived
    device, (C, K) = arrived.picks_NGK.device, gates_inside(costs, num_experts)
    sums_N = torch.tensor(theirs.sums).repeat_interleave(torch.tensor(theirs.rows))
    sums_N11 = sums_N.view(-1, 1, 1).to(device)
    back, cells_R = ops.return_plan(arrived.routes, theirs.table(device)), None
    experts_NCK, weights_NCK = arrived.picks_NGK, arrived.weights_NGK
    if costs.way != "sums":
        cells_R = _columns(arrived.routes, C) * K
        experts_X = experts_NCK.new_full((len(experts_NCK) * C * K + 1,), -1)
        # The last place takes what goes back in sums, and is cut off
        at_R = torch.where(back.back_R >= 0, cells_R, len(experts_X) - 1)
        experts_X[at_R] = experts_of_pairs(arrived.routes).to(torch.int32)
        experts_NCK = experts_X[:-1].view(-1, C, K)
        weights_NCK = weights_NCK.new_ones(experts_NCK.shape)
    if costs.way == "auto":
        padding = (0, 0, 0, C - arrived.picks_NGK.shape[1])
        picks_NCK = functional.pad(arrived.picks_NGK, padding, value=-1)
        experts_NCK = torch.where(sums_N11, picks_NCK, experts_NCK)
        came_NCK = functional.pad(arrived.weights_NGK, padding)
        weights_NCK = torch.where(sums_N11, came_NCK, weights_NCK)
    plan = DispatchPlan(
        experts_BGK=experts_NCK,
        weights_BGK=weights_NCK,
        num_experts=num_experts,
        expert_source=(0,) * num_experts,
        output_dim=costs.output_dim,
        most_pairs=costs.bound,
    )
    return Relayed(plan, back, cells_R, sums_N11)


def _columns(routes: ops.RoutePlan, width: int) -> Tensor:
    """Of each pair its place in `[N, width]`: its row, and its number among that row's pairs."""
    row_R = routes.rows_P.long()
    order_R = row_R.argsort(stable=True)
    counts_N = torch.bincount(row_R, minlength=len(routes.slots_BGK))
    first_N = counts_N.cumsum(0) - counts_N
    number_R = torch.empty_like(row_R)
    number_R[order_R] = torch.arange(len(row_R), device=row_R.device) - first_N[row_R[order_R]]
    return row_R * width + number_R


def way_home(on: Relayed, came: Handle, inside: Crossing, ranks_E: Tensor) -> WayHome:
    """Plans what goes back across, of what comes back inside the host.

    Args:
        on: What went on.
        came: Over the links between hosts.
        inside: How it went on.
        ranks_E: The rank of each expert of this host.
    """
    places_NCK, as_sums_NCK = _places(on.plan.experts_BGK, inside, ranks_E)
    num_back, picks_NGK = sum(inside.ours.back), came.arrived.picks_NGK
    back_Z = picks_NGK.new_full((num_back + 1,), -1)
    if on.cells_R is not None:
        back_R = on.back.back_R
        at_R = torch.where(back_R >= 0, places_NCK.flatten()[on.cells_R], num_back)
        back_Z[at_R] = back_R
    slots_NGK, weights_NGK = torch.full_like(picks_NGK, -1), came.arrived.weights_NGK
    if any(came.crossing.theirs.sums):
        G = picks_NGK.shape[1]
        as_sums_NGK = as_sums_NCK[:, :G]
        slots_NGK = torch.where(on.sums_N11, places_NCK[:, :G], -1)
        if any(inside.ours.sums):
            again_NGK = _again(slots_NGK, num_back) & as_sums_NGK
            slots_NGK = slots_NGK.masked_fill(again_NGK, -1)
            weights_NGK = weights_NGK.masked_fill(as_sums_NGK, 1)
    back = ReturnPlan(back_Z[:-1], on.back.back_NG)
    return WayHome(back, slots_NGK.to(torch.int32), weights_NGK)


def _places(experts_NCK: Tensor, crossing: Crossing, ranks_E: Tensor) -> tuple[Tensor, Tensor]:
    """Of each pick the row that comes back for it (−1: unused), and whether that is a sum."""
    ours, out = crossing.ours, crossing.out
    rank_NCK = ranks_E[experts_NCK.clamp(min=0).long()]
    _, _, _, pairs_W, sums_W, back_W = ours.table(ranks_E.device)[:-1].unbind(1)
    as_sums_NCK = torch.tensor(ours.sums, device=ranks_E.device)[rank_NCK]
    places_NCK = torch.where(
        as_sums_NCK,
        out.sums_BGK + (back_W - sums_W)[rank_NCK],
        out.pairs_BGK + (back_W - pairs_W)[rank_NCK],
    )
    return places_NCK.masked_fill(experts_NCK < 0, -1), as_sums_NCK


def _again(slots_NGK: Tensor, num_rows: int) -> Tensor:
    """Whether a pick before it has the same row."""
    slots_X = torch.where(slots_NGK < 0, num_rows, slots_NGK).flatten()
    numbers_X = torch.arange(len(slots_X), device=slots_X.device)
    first_Z = numbers_X.new_full((num_rows + 1,), len(slots_X))
    first_Z = first_Z.scatter_reduce(0, slots_X, numbers_X, "amin")
    return (first_Z[slots_X] < numbers_X).view(slots_NGK.shape)
