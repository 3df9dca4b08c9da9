"""What a rank does with rows that came from another host: which picks go on inside its own.

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
from mmoe.parallel.experts.exchange import Handle
from mmoe.parallel.experts.links import WayCosts


class Relayed(NamedTuple):
    """What goes on inside the host, and what of its result goes back.

    Attributes:
        plan: Picks of the host's experts, C gates or columns and K picks of each.
        cells_Z: For each row that goes back to another host, its place in the flattened out_NCO;
            int64.
    """

    plan: DispatchPlan
    cells_Z: Tensor


def gates_inside(costs: WayCosts, num_experts: int) -> tuple[int, int]:
    """Returns C and K of what is passed on: the same on all ranks of a host, whatever came.

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
    (G, K), columns = costs.picks, _columns(costs, num_experts)
    if costs.way == "sums":
        return G, K
    return (columns, 1) if costs.way == "pairs" else (max(G, columns), K)


def _columns(costs: WayCosts, num_experts: int) -> int:
    """How many distinct experts of this host a row has at most."""
    G, K = costs.picks
    bounds = [G * K, num_experts]
    return min(bounds if costs.bound is None else [*bounds, costs.bound])


def relayed(came: Handle, costs: WayCosts, num_experts: int) -> Relayed:
    """Plans how rows that came go on.

    Args:
        came: Over the links between hosts.
        costs: Of that exchange.
        num_experts: On this host, 1 or more.
    """
    theirs, arrived = came.crossing.theirs, came.arrived
    picks_NGK, device = arrived.picks_NGK, arrived.picks_NGK.device
    C, K = gates_inside(costs, num_experts)
    sums_N = torch.tensor(theirs.sums).repeat_interleave(torch.tensor(theirs.rows)).to(device)
    as_sums_N11 = sums_N.view(-1, 1, 1)
    # One place more, which takes what does not go so
    experts_X = picks_NGK.new_full((len(picks_NGK) * C * K + 1,), -1)
    cells_Z = torch.empty(sum(theirs.back) + 1, dtype=torch.int64, device=device)
    back = ops.return_plan(arrived.routes, theirs.table(device))
    if costs.way != "sums":
        row_R, column_R = _places(arrived.routes)
        cell_R = row_R * C + column_R
        goes_R = back.back_R >= 0
        at_R = torch.where(goes_R, cell_R * K, len(experts_X) - 1)
        experts_X[at_R] = experts_of_pairs(arrived.routes).to(torch.int32)
        experts_X[-1] = -1
        cells_Z[torch.where(goes_R, back.back_R.long(), len(cells_Z) - 1)] = cell_R
    experts_NCK = experts_X[:-1].view(-1, C, K)
    weights_NCK = arrived.weights_NGK.new_ones(experts_NCK.shape)
    if costs.way != "pairs":
        G = picks_NGK.shape[1]
        padding = (0, 0, 0, C - G)
        padded_NCK = functional.pad(picks_NGK, padding, value=-1)
        experts_NCK = torch.where(as_sums_N11, padded_NCK, experts_NCK)
        weights_NCK = torch.where(
            as_sums_N11, functional.pad(arrived.weights_NGK, padding), weights_NCK
        )
        cell_NG = torch.arange(len(picks_NGK) * C, device=device).view(-1, C)[:, :G]
        goes_NG = back.back_NG >= 0
        cells_Z[torch.where(goes_NG, back.back_NG.long(), len(cells_Z) - 1)] = cell_NG
    plan = DispatchPlan(
        experts_BGK=experts_NCK,
        weights_BGK=weights_NCK,
        num_experts=num_experts,
        expert_source=(0,) * num_experts,
        output_dim=costs.output_dim,
        most_pairs=costs.bound,
    )
    return Relayed(plan, cells_Z[:-1])


def _places(routes: ops.RoutePlan) -> tuple[Tensor, Tensor]:
    """Of each pair its row, and its number among the pairs of that row; int64."""
    row_R = routes.rows_P.long()
    order_R = row_R.argsort(stable=True)
    counts_N = torch.bincount(row_R, minlength=len(routes.slots_BGK))
    first_N = counts_N.cumsum(0) - counts_N
    numbers_R = torch.arange(len(row_R), device=row_R.device)
    number_R = torch.empty_like(row_R)
    number_R[order_R] = numbers_R - first_N[row_R[order_R]]
    return row_R, number_R
