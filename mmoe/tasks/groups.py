"""Sums and pairs over the groups of a batch, for losses that compare rows."""

from typing import NamedTuple

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """All pairs of a positive and a negative row of one group.

    Attributes:
        positive_P: Numbers of the positive rows.
        negative_P: Of the negative ones.
    """

    positive_P: Tensor
    negative_P: Tensor


def group_sum(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """Returns the sum of values over each group, `[B]`: group g's at place g.

    Args:
        values_B: Of any float type.
        groups_B: Number of each row's group, int64, below B.

    Example:
        >>> group_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
        tensor([5., 2., 0.])
    """
    return torch.zeros_like(values_B).index_add(0, groups_B, values_B)


def group_logsumexp(z_B: Tensor, groups_B: Tensor, counted_B: Tensor) -> Tensor:
    """Returns `ln Σ exp(z)` over the counted rows of each row's group; 0 where none counts.

    Args:
        z_B: Logits.
        groups_B: As in `group_sum`.
        counted_B: Which rows count, bool.

    Example:
        >>> z, groups = torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0, 0, 1])
        >>> group_logsumexp(z, groups, torch.tensor([True, True, False]))
        tensor([0.6931, 0.6931, 0.0000])
    """
    lowest = torch.finfo(z_B.dtype).min
    with torch.no_grad():
        counted = torch.where(counted_B, z_B, lowest)
        most_G = torch.full_like(z_B, lowest).scatter_reduce(0, groups_B, counted, "amax")
        most_B = torch.where(most_G > lowest, most_G, 0.0)[groups_B]
    shifted_B = torch.where(counted_B, z_B - most_B, 0.0)
    sums_G = group_sum(torch.where(counted_B, shifted_B.exp(), 0.0), groups_B)
    some_G = sums_G > 0
    logs_G = torch.where(some_G, torch.where(some_G, sums_G, 1.0).log(), 0.0)
    return logs_G[groups_B] + most_B


def group_pairs(positive_B: Tensor, negative_B: Tensor, groups_B: Tensor) -> Pairs:
    """Lists the pairs of a positive and a negative row of the same group.

    Args:
        positive_B: bool.
        negative_B: bool.
        groups_B: As in `group_sum`.

    Example:
        >>> flags = torch.tensor([True, False, False, True])
        >>> pairs = group_pairs(flags, ~flags, torch.tensor([0, 0, 0, 1]))
        >>> pairs.positive_P.tolist(), pairs.negative_P.tolist()
        ([0, 0], [1, 2])
    """
    negatives_N = negative_B.nonzero()[:, 0]
    negatives_N = negatives_N[groups_B[negatives_N].argsort(stable=True)]
    counts_G = torch.bincount(groups_B[negatives_N], minlength=len(groups_B))
    first_G = counts_G.cumsum(0) - counts_G
    positives_N = positive_B.nonzero()[:, 0]
    of_each_N = counts_G[groups_B[positives_N]]
    positive_P = positives_N.repeat_interleave(of_each_N)
    before_P = (of_each_N.cumsum(0) - of_each_N).repeat_interleave(of_each_N)
    place_P = torch.arange(len(positive_P), device=groups_B.device) - before_P
    return Pairs(positive_P, negatives_N[first_G[groups_B[positive_P]] + place_P])
