"""A batch in chunks or halves: rows of one part travel while the experts compute another."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from mmoe.mixture import Compute, DispatchPlan, LocalDispatcher, Tree
from mmoe.mixture.dispatcher import LocalHandle, plan_routes
from mmoe.ops import RoutePlan
from mmoe.parallel.experts.async_exchange import Steps, at_once, staggered
from mmoe.parallel.experts.exchange import Departure, Exchange, Piece, Terms
from mmoe.parallel.experts.two_levels import TwoLevels


def in_chunks(
    road: Exchange | TwoLevels,
    whole: Piece,
    terms: Terms,
    chunks: int,
    compute: Compute,
    meanwhile: Iterator[object] | None = None,
) -> Tensor:
    """Sends the rows out, computes, and brings the outputs back: `out_BGO`.

    Each rank cuts its own batch into as many chunks, some of them empty where it has fewer rows. In
    the backward pass autograd runs what was made last first, so it goes through the same order from
    its end, and the gradients of one chunk travel while another's are computed.

    Args:
        road: How rows travel.
        whole: The batch.
        terms: What all ranks agree on.
        chunks: n.
        compute: Runs the experts.
        meanwhile: See `staggered`.
    """
    pieces = _cut(whole, chunks)
    ways = [_there_and_back(road, leaving, compute) for leaving in road.prepare(pieces, terms)]
    outs = staggered(ways, road.num_steps, meanwhile)
    return outs[0] if chunks == 1 else torch.cat(outs)


def _cut(whole: Piece, chunks: int) -> list[Piece]:
    """Cuts a batch into chunks whose sizes differ by at most one row."""
    if chunks == 1:
        return [whole]
    plan, rows = whole.plan, len(whole.plan.experts_BGK)
    bounds = [rows * i // chunks for i in range(chunks + 1)]
    sizes = [b - a for a, b in pairwise(bounds)]
    # One split of each, whose backward pass joins the chunks' gradients instead of adding them up
    sources = [source.split(sizes) for source in whole.sources]
    picks, weights = plan.experts_BGK.split(sizes), plan.weights_BGK.split(sizes)
    return [
        Piece(
            [source[i] for source in sources],
            replace(plan, experts_BGK=picks[i], weights_BGK=weights[i], routes=None),
        )
        for i in range(chunks)
    ]


def _there_and_back(
    road: Exchange | TwoLevels, leaving: Departure, compute: Compute
) -> Steps[Tensor]:
    """Takes rows to their experts, and their outputs back."""
    handle = yield from road.outward(leaving)
    y = compute(handle.arrived.x_RD, handle.arrived.offsets_E1)
    return (yield from road.homeward(y, handle))  # type: ignore[arg-type]  # of the same road


def split_picks(plan: DispatchPlan, experts: Sequence[int]) -> tuple[DispatchPlan, DispatchPlan]:
    """Splits the picks: those of other experts, and those of these by their place among them.

    Args:
        plan: The picks.
        experts: Numbers of these.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> plan = DispatchPlan(
        ...     experts_BGK=torch.tensor([[[0, 2, -1, 3]]], dtype=torch.int32),
        ...     weights_BGK=torch.ones(1, 1, 4),
        ...     num_experts=4,
        ...     expert_source=(0, 0, 0, 0),
        ... )
        >>> away, own = split_picks(plan, [2, 3])
        >>> away.experts_BGK.tolist(), own.experts_BGK.tolist()
        ([[[0, -1, -1, -1]]], [[[-1, 0, -1, 1]]])
    """
    device = plan.experts_BGK.device
    # One entry more than experts: what an unused pick, −1, reads
    numbers_E1 = torch.full((plan.num_experts + 1,), -1, dtype=torch.int32)
    numbers_E1[list(experts)] = torch.arange(len(experts), dtype=torch.int32)
    own_BGK = numbers_E1.to(device)[plan.experts_BGK.long()]
    away = replace(plan, experts_BGK=plan.experts_BGK.masked_fill(own_BGK >= 0, -1), routes=None)
    own = replace(
        plan,
        experts_BGK=own_BGK,
        num_experts=len(experts),
        expert_source=tuple(plan.expert_source[e] for e in experts),
        source_E=None,
        routes=None,
    )
    return away, own


def own_halves(sources: Sequence[Tree], own: DispatchPlan, compute: Compute) -> Iterator[Tensor]:
    """Yields what the experts of this rank give to `out_BGO`, half of the rows, then the rest.

    Args:
        sources: S tensors `x_BD`.
        own: Picks of the experts here.
        compute: Runs the experts.
    """
    # One half to hide the rows' way out, one for the outputs' way back
    half = own.experts_BGK.shape[0] // 2
    for at in (slice(half), slice(half, None)):
        picked = replace(own, experts_BGK=own.experts_BGK[at], weights_BGK=own.weights_BGK[at])
        yield mix_here([source[at] for source in sources], picked, compute)


def near_halves(inside: Exchange, near: Piece, terms: Terms, compute: Compute) -> Iterator[Tensor]:
    """Yields what the experts of this host give to `out_BGO`, half of the rows, then the rest.

    All ranks of the host take part, each at the same places of its batch.

    Args:
        inside: Between the ranks of this host.
        near: The batch, and picks of its experts by their numbers there.
        terms: What all ranks agree on.
        compute: Runs the experts.
    """
    # Of the experts of one host a row has fewer at most
    costs = terms.costs._replace(bound=near.plan.bound)
    for leaving in inside.prepare(_cut(near, 2), terms._replace(costs=costs)):
        yield at_once(_there_and_back(inside, leaving, compute))


def mix_here(sources: Sequence[Tree], plan: DispatchPlan, compute: Compute) -> Tensor:
    """Returns `out_BGO` of experts that are all here."""
    dispatcher = LocalDispatcher()
    routes = plan_routes(plan.experts_BGK, plan.num_experts, most_pairs=plan.most_pairs)
    if _every_row(plan, routes):
        # The experts read the rows as they lie, as what comes from other ranks
        return dispatcher.combine(
            compute(sources[plan.expert_source[0]], None),
            LocalHandle(routes.slots_BGK, plan.weights_BGK),
        )
    rows, offsets_E1, handle = dispatcher.dispatch(sources, replace(plan, routes=routes))
    return dispatcher.combine(compute(rows, offsets_E1), handle)


def _every_row(plan: DispatchPlan, routes: RoutePlan) -> bool:
    """Returns whether each of several experts was picked for all rows; unasked on a GPU."""
    offsets_E1, pairs = routes.offsets_E1, len(plan.experts_BGK) * plan.num_experts
    one_source = len(set(plan.expert_source)) == 1 < plan.num_experts
    return one_source and offsets_E1.device.type == "cpu" and 0 < pairs == int(offsets_E1[-1])
