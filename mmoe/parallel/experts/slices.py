"""Picks of experts that are cut along their hidden units: a pick of one is a pick of its slices."""

from dataclasses import replace

import torch

from mmoe.mixture import DispatchPlan


def slice_picks(plan: DispatchPlan, slices: int) -> DispatchPlan:
    """Turns every pick of an expert into picks of all of its slices, with its weight.

    `w · y[e] = Σ_s w · y[e · slices + s]`, so that nothing else has to know of slices: a row still
    goes to a rank once, and where sums come back, slices on one rank are one sum.

    Args:
        plan: The picks of E experts.
        slices: r.

    Returns:
        The picks of E · r slices, `[B, G, K · r]`; with one slice, the plan itself.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> from mmoe.parallel.experts.slices import slice_picks
        >>> plan = DispatchPlan(
        ...     experts_BGK=torch.tensor([[[1, -1]]], dtype=torch.int32),
        ...     weights_BGK=torch.tensor([[[0.5, 0.0]]]),
        ...     num_experts=2,
        ...     expert_source=(0, 1),
        ... )
        >>> sliced = slice_picks(plan, 2)
        >>> sliced.experts_BGK.tolist(), sliced.expert_source
        ([[[2, 3, -1, -1]]], (0, 0, 1, 1))

    Source: Hwang et al., "Tutel" (MLSys 2023), section 3.1, for experts cut where ranks outnumber
        them (r > 1).
    """
    if slices == 1:
        return plan
    picked_BGK1 = plan.experts_BGK.unsqueeze(3)
    of_one_S = torch.arange(slices, dtype=torch.int32, device=picked_BGK1.device)
    experts_BGKS = torch.where(picked_BGK1 < 0, -1, picked_BGK1 * slices + of_one_S)
    return replace(
        plan,
        experts_BGK=experts_BGKS.to(torch.int32).flatten(2),
        weights_BGK=plan.weights_BGK.repeat_interleave(slices, 2),
        num_experts=plan.num_experts * slices,
        expert_source=tuple(source for source in plan.expert_source for _ in range(slices)),
        source_E=None,
        routes=None,
        most_pairs=None if plan.most_pairs is None else plan.most_pairs * slices,
    )
