"""Softmax over the events of each row."""

import torch
from torch import Tensor

from mmoe.models.sequences.events import Events
from mmoe.ops.jagged_sum import jagged_sum


def jagged_softmax(scores_VH: Tensor, events: Events, own_BH: Tensor | None = None) -> Tensor:
    """Returns weights that sum to 1 over a row's events, or with `own_BH` to less.

    `w_v = exp(s_v) / (exp(own) + Σ_u exp(s_u))`, for each of H columns by itself.

    Args:
        scores_VH: Of each event.
        events: Whose events they are.
        own_BH: Score of something else that each row has; None: nothing.

    Example:
        >>> import torch
        >>> from mmoe.models.sequences.events import Events
        >>> events = Events(torch.zeros(3, 4), torch.tensor([2, 1]))
        >>> jagged_softmax(torch.zeros(3, 1), events).tolist()
        [[0.5], [0.5], [1.0]]
    """
    row_V = events.row_V
    # Subtracted for range alone: the result does not depend on it
    most_BH = _most(scores_VH.detach(), events, None if own_BH is None else own_BH.detach())
    exp_VH = (scores_VH - most_BH.index_select(0, row_V)).exp()
    sums_BH = jagged_sum(exp_VH, events.lengths_B)
    if own_BH is not None:
        sums_BH = sums_BH + (own_BH - most_BH).exp()
    return exp_VH / sums_BH.index_select(0, row_V)


def _most(scores_VH: Tensor, events: Events, own_BH: Tensor | None) -> Tensor:
    shape = len(events.lengths_B), scores_VH.shape[1]
    least_BH = scores_VH.new_full(shape, -torch.inf) if own_BH is None else own_BH.clone()
    index_VH = events.row_V[:, None].expand_as(scores_VH)
    return least_BH.scatter_reduce(0, index_VH, scores_VH, "amax")
