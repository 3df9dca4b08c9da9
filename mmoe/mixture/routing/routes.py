"""Route plans, and what is made of one: cut, padded, or read from several sources."""

import torch
from torch import Tensor

from mmoe import ops


def host_is_near(tensor: Tensor) -> bool:
    """Returns whether a value can be read without waiting: on the CPU, not in a trace."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def plan_routes(
    experts_BGK: Tensor,
    num_experts: int,
    limit: int | None = None,
    most_pairs: int | None = None,
) -> ops.RoutePlan:
    """Makes a `route_plan` with no more rows than are known to be needed.

    Args:
        experts_BGK: int32; −1 = unused.
        num_experts: E.
        limit: The most rows that an expert has, if that is known.
        most_pairs: The most distinct experts that a row has, if that is known.

    Returns:
        The plan. Its tail is cut off where the number of pairs can be read for nothing; elsewhere
        it has as many places as there can be pairs.

    Raises:
        ValueError: A row has more experts than `most_pairs` (where that can be read for nothing).

    Example:
        >>> import torch
        >>> from mmoe.mixture.routing.routes import plan_routes
        >>> picks = torch.tensor([[[0, 1]], [[1, -1]]], dtype=torch.int32)
        >>> plan_routes(picks, num_experts=2).rows_P.tolist()
        [0, 0, 1]
    """
    plan = ops.route_plan(experts_BGK, num_experts)
    rows = experts_BGK.shape[0]
    if host_is_near(plan.offsets_E1):
        pairs = int(plan.offsets_E1[-1])
        if most_pairs is not None and pairs > rows * most_pairs:
            raise ValueError(
                f"gate: expected at most {most_pairs} distinct experts for a row, as it says, got "
                f"{pairs} for {rows} rows"
            )
        return plan._replace(rows_P=plan.rows_P[:pairs])
    if most_pairs is not None and most_pairs < num_experts:
        plan = plan._replace(rows_P=plan.rows_P[: rows * most_pairs])
    # A traced batch size stays free only where nothing is cut.
    if limit is not None and not torch.compiler.is_compiling():
        rows = min(plan.rows_P.shape[0], num_experts * limit)
        return plan._replace(rows_P=plan.rows_P[:rows])
    return plan


def experts_of_pairs(plan: ops.RoutePlan) -> Tensor:
    """Returns the expert of every pair, int64; E in the tail."""
    pairs_P = torch.arange(plan.rows_P.shape[0], device=plan.rows_P.device, dtype=torch.int32)
    return torch.searchsorted(plan.offsets_E1[1:], pairs_P, right=True)


def padded_routes(plan: ops.RoutePlan, experts_BGK: Tensor, width: int) -> ops.RoutePlan:
    """Makes the plan with `width` rows an expert: pair i of e is row e · width + i.

    Args:
        plan: Of these picks; no expert has more than `width` rows.
        experts_BGK: The picks.
        width: C, rows for each expert.

    Returns:
        A plan of E · C rows; row −1 where an expert has fewer.

    Example:
        >>> import torch
        >>> from mmoe.mixture.routing.routes import padded_routes, plan_routes
        >>> picks = torch.tensor([[[0, 1]], [[1, -1]]], dtype=torch.int32)
        >>> padded = padded_routes(plan_routes(picks, num_experts=2), picks, width=2)
        >>> padded.rows_P.tolist(), padded.slots_BGK.flatten().tolist()
        ([0, -1, 0, 1], [0, 2, 3, -1])
    """
    device, num_experts = plan.rows_P.device, plan.offsets_E1.shape[0] - 1
    starts_E, ends_E = plan.offsets_E1[:-1], plan.offsets_E1[1:]
    pairs_EC = starts_E.unsqueeze(1) + torch.arange(width, device=device, dtype=torch.int32)
    pairs = plan.rows_P.shape[0]
    # Entry `pairs` stands for a place that no pair takes.
    rows_P1 = torch.cat([plan.rows_P, plan.rows_P.new_full((1,), -1)])
    rows_EC = rows_P1[torch.where(pairs_EC < ends_E.unsqueeze(1), pairs_EC, pairs)]
    offsets_E1 = width * torch.arange(num_experts + 1, device=device, dtype=torch.int32)
    shift_E = offsets_E1[:-1] - starts_E
    shift_BGK = shift_E[experts_BGK.clamp(min=0).long()]
    slots_BGK = torch.where(plan.slots_BGK >= 0, plan.slots_BGK + shift_BGK, -1)
    return ops.RoutePlan(rows_EC.flatten(), offsets_E1, slots_BGK)


def routes_by_source(
    plan: ops.RoutePlan, experts_BGK: Tensor, source_E: Tensor, num_sources: int
) -> ops.RoutePlan:
    """Makes the plan over stacked sources: row b · S + s is sample b of source s.

    Args:
        plan: Over samples.
        experts_BGK: The picks.
        source_E: Which source each expert reads, int32.
        num_sources: S.

    Returns:
        A plan over B · S rows that is good for gathering; the slots for combining are the old ones.
    """
    expert_P = experts_of_pairs(plan).clamp(max=source_E.shape[0] - 1)
    rows_P = torch.where(plan.rows_P >= 0, plan.rows_P * num_sources + source_E[expert_P], -1)
    sources_S11 = torch.arange(num_sources, device=source_E.device).view(-1, 1, 1)
    source_BGK = source_E[experts_BGK.clamp(min=0).long()]
    slots_BSGK = torch.where(
        source_BGK.unsqueeze(1) == sources_S11, plan.slots_BGK.unsqueeze(1), -1
    )
    return ops.RoutePlan(rows_P, plan.offsets_E1, slots_BSGK.flatten(0, 1))
