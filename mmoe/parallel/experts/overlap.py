"""Overlap: what ranks compute for themselves or their host while other rows travel."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmoe.mixture import DispatchPlan, LocalDispatcher
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.routing.dispatcher import Compute, LocalHandle, plan_routes
from mmoe.ops import RoutePlan
from mmoe.parallel.experts.exchange import Exchange, Piece, Terms
from mmoe.parallel.experts.pipeline import cut, there_and_back
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.steps import at_once


def split_plan(
    plan: DispatchPlan, placement: ExpertPlacement, rank: int
) -> tuple[DispatchPlan, DispatchPlan]:
    """Splits the picks: those of other ranks' experts, and those of this rank's by local number.

    Ranks may be hosts: of a placement that says which host holds which expert.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> from mmoe.parallel import ExpertPlacement
        >>> plan = DispatchPlan(
        ...     experts_BGK=torch.tensor([[[0, 2, -1, 3]]], dtype=torch.int32),
        ...     weights_BGK=torch.ones(1, 1, 4),
        ...     num_experts=4,
        ...     expert_source=(0, 0, 0, 0),
        ... )
        >>> away, own = split_plan(plan, ExpertPlacement.even(4, 2), rank=1)
        >>> away.experts_BGK.tolist(), own.experts_BGK.tolist()
        ([[[0, -1, -1, -1]]], [[[-1, 0, -1, 1]]])
    """
    return split_picks(plan, placement.on(rank))


def split_picks(plan: DispatchPlan, experts: Sequence[int]) -> tuple[DispatchPlan, DispatchPlan]:
    """Splits the picks: those of other experts, and those of these by their place among them."""
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
    for leaving in inside.prepare(cut(near, 2), terms._replace(costs=costs)):
        yield at_once(there_and_back(inside, leaving, compute))


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
