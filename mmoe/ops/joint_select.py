"""`joint_select`: the experts that the gates of a row choose together."""

from typing import Literal, get_args

import torch
from torch import Tensor

from mmoe.ops._checks import check_device, check_dims, check_shape
from mmoe.ops._library import define

Aggregate = Literal["mean", "max"]


def joint_select(
    scores_BGE: Tensor,
    visibility_GE: Tensor,
    *,
    shared_k: int = 0,
    private_k: int,
    budget: int | None = None,
    floor: int = 1,
    aggregate: Aggregate = "mean",
    votes_G: Tensor | None = None,
    asked_BG: Tensor | None = None,
) -> Tensor:
    """Picks experts for all gates of a row together, so that few are computed for all of them.

    With p the scores, and V the gates with a vote that a row asks for (all that it asks for, where
    none of them has a vote), without a budget:

    shared = the shared_k experts of largest `Σ_{g ∈ V} p_g[e]` (or `max`) that all of V see
    picks_g = shared and the private_k others of largest `p_g[e]`, among those that g sees

    With a budget b a row's set S has at most b experts: first, with floor 1, each voting gate's
    first choice; then the shared ones; then, one by one, the expert that adds most to

    `Σ_{g ∈ V} (sum of the private_k largest p_g in S without the shared ones)`

    while there is room. Gate g is given the shared ones and the private_k best that it sees of the
    rest of S; one without a vote may add its first choice to S for itself (floor 1). So with
    shared_k = 0 it is the best set of b experts, found greedily: at least 1 − 1/e of the best.

    Of equal ones the expert with the lower number wins. Rows do not depend on one another.

    Args:
        scores_BGE: float32 or float64, how much each gate wants each expert: probabilities, times
            how much the gate has to say. An expert with a score of 0, below, or NaN is not picked.
        visibility_GE: Bool; a gate never picks an expert it does not see.
        shared_k: From 0 on.
        private_k: From 0 on; shared_k + private_k is at least 1, and at most E.
        budget: b, at least shared_k; None: any number.
        floor: 1 or 0.
        aggregate: What makes the shared experts: the `mean` of the votes or their `max`.
        votes_G: Bool; None: every gate has a vote.
        asked_BG: Bool, the gates that each row asks for; others pick nothing. None: all.

    Returns:
        picked_BGE, bool: at most shared_k + private_k experts for a gate. It has no gradient: the
        weights of what was picked have one.

    Raises:
        ValueError: On shapes, dtypes or devices that do not fit, or numbers out of range.

    Example:
        >>> import torch
        >>> from mmoe.ops import joint_select
        >>> scores = torch.tensor([[[0.5, 0.3, 0.2, 0.0], [0.0, 0.3, 0.1, 0.6]]])
        >>> visible = torch.ones(2, 4, dtype=torch.bool)
        >>> joint_select(scores, visible, shared_k=1, private_k=1).int().tolist()
        [[[1, 1, 0, 0], [0, 1, 0, 1]]]
        >>> joint_select(scores, visible, private_k=2, budget=3).int().tolist()
        [[[1, 1, 0, 0], [0, 1, 0, 1]]]

    Source:
        The greedy set: Nemhauser, Wolsey and Fisher, "An analysis of approximations for maximizing
        submodular set functions" (Mathematical Programming 14, 1978). Shared and private picks of
        several gates: SMES (arXiv 2602.09386, 2026); these rules are ours.
    """
    check_dims("scores_BGE", scores_BGE, "BGE")
    if scores_BGE.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"scores_BGE: expected one of torch.float32, torch.float64, got {scores_BGE.dtype}"
        )
    B, G, E = scores_BGE.shape
    if E == 0:
        raise ValueError("scores_BGE: expected at least one expert, got none")
    _check_bool("visibility_GE", visibility_GE, (G, E), scores_BGE)
    if votes_G is None:
        votes_G = visibility_GE.new_ones(G)
    _check_bool("votes_G", votes_G, (G,), scores_BGE)
    if asked_BG is not None:
        _check_bool("asked_BG", asked_BG, (B, G), scores_BGE)
    check_selection(shared_k, private_k, budget, floor, E)
    if aggregate not in get_args(Aggregate):
        raise ValueError(f"aggregate: expected 'mean' or 'max', got {aggregate!r}")
    return torch.ops.mmoe.joint_select(
        scores_BGE.detach(),
        visibility_GE,
        votes_G,
        asked_BG,
        shared_k,
        private_k,
        budget or 0,
        floor,
        aggregate == "max",
    )


def check_selection(
    shared_k: int, private_k: int, budget: int | None, floor: int, num_experts: int
) -> None:
    """Refuses numbers that select nothing, or more than there is."""
    for name, value in (("shared_k", shared_k), ("private_k", private_k)):
        if value < 0:
            raise ValueError(f"{name}: expected 0 or more, got {value}")
    if not 1 <= shared_k + private_k <= num_experts:
        raise ValueError(
            f"shared_k: expected shared_k + private_k from 1 to {num_experts} (the number of "
            f"experts), got {shared_k} + {private_k}"
        )
    if budget is not None and budget < max(shared_k, 1):
        raise ValueError(
            f"budget: expected {max(shared_k, 1)} or more (shared_k is {shared_k}), got {budget}"
        )
    if floor not in (0, 1):
        raise ValueError(f"floor: expected 0 or 1, got {floor}")


def _check_bool(name: str, tensor: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    check_shape(name, tensor, shape, "scores_BGE")
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name}: expected dtype torch.bool, got {tensor.dtype}; use .bool()")
    check_device(name, tensor, like.device, "scores_BGE")


def _fake(
    scores_BGE: Tensor,
    visibility_GE: Tensor,
    votes_G: Tensor,
    asked_BG: Tensor | None,
    shared_k: int,
    private_k: int,
    budget: int,
    floor: int,
    largest: bool,
) -> Tensor:
    return scores_BGE.new_empty(scores_BGE.shape, dtype=torch.bool)


define(
    "joint_select(Tensor scores_BGE, Tensor visibility_GE, Tensor votes_G, Tensor? asked_BG,"
    " int shared_k, int private_k, int budget, int floor, bool largest) -> Tensor",
    _fake,
)
