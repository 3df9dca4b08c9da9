"""Losses within a group: pairs (BPR), a softmax over it, and both logits of JRC."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import TaskConfig
from mmoe.config.tasks import GroupedTask
from mmoe.tasks.kinds.base import LossRows
from mmoe.tasks.kinds.binary import Binary


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


class Grouped(Binary):
    """Objective of tasks that compare rows: `α ℓ_b + (1 − α) L_g(b)` of row b of group g.

    ℓ is the cross-entropy of the row, α the task's `pointwise_weight`, and L the loss of its group,
    which every row of it bears: the mean over rows weighs groups by their rows, as GAUC does. Rows
    of weight 0, or without a label, take no part in their group.
    """

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes each row's loss, and that of its group.

        Raises:
            ValueError: There are no groups.
        """
        task, logits = tasks[t], rows.logits[t]
        assert isinstance(task, GroupedTask)
        if rows.groups_B is None:
            raise ValueError(
                f"task {task.name!r}: kind {task.kind} compares rows of one group; give groups_B, "
                "the number of each row's group"
            )
        of_group_B = self.group_loss(logits, rows.label_B > 0.5, rows.weight_B, rows.groups_B)
        if not task.pointwise_weight:
            return of_group_B
        z_B = logits if logits.dim() == 1 else logits[:, 0]
        of_row_B = F.binary_cross_entropy_with_logits(z_B, rows.label_B, reduction="none")
        return task.pointwise_weight * of_row_B + (1 - task.pointwise_weight) * of_group_B

    @abstractmethod
    def group_loss(
        self, logits: Tensor, positive_B: Tensor, weight_B: Tensor, groups_B: Tensor
    ) -> Tensor:
        """Computes the loss of each row's group, `[B]`; 0 where the group tells nothing.

        Args:
            logits: The task's, `logit_B` or `logits_BK`.
            positive_B: Which rows have label 1, bool.
            weight_B: 0 or more; 0 where the label is not known.
            groups_B: Number of each row's group, int64, below B.
        """


class Bpr(Grouped):
    """Objective of pairs: a group's loss is the mean of `−ln σ(z_i − z_j)` over its pairs.

    i is a positive row, j a negative one; the mean is weighted by `w_i w_j`.

    Source: Rendle et al., "BPR: Bayesian personalized ranking from implicit feedback" (UAI 2009),
        section 4.1, over all pairs of a group instead of sampled ones.
    """

    def group_loss(
        self, logits: Tensor, positive_B: Tensor, weight_B: Tensor, groups_B: Tensor
    ) -> Tensor:
        """Computes the mean over the pairs of each row's group."""
        counted_B = weight_B > 0
        i_P, j_P = group_pairs(positive_B & counted_B, ~positive_B & counted_B, groups_B)
        weight_P, of_group_P = weight_B[i_P] * weight_B[j_P], groups_B[i_P]
        loss_P = weight_P * F.softplus(logits[j_P] - logits[i_P])
        zeros_G = torch.zeros_like(logits)
        losses_G = zeros_G.index_add(0, of_group_P, loss_P)
        weights_G = zeros_G.index_add(0, of_group_P, weight_P)
        return (losses_G / torch.where(weights_G > 0, weights_G, 1.0))[groups_B]


class Softmax(Grouped):
    """Objective of a list: a group's loss is the mean of `−ln softmax(z)_i` over its positives.

    The softmax is over the rows of the group, the mean weighted by `w_i`. A group without a
    negative row, or without a positive one, tells nothing.

    Source: Cao et al., "Learning to rank: from pairwise approach to listwise approach" (ICML 2007);
        Bruch et al., "An analysis of the softmax cross entropy loss for learning-to-rank with
        binary relevance" (ICTIR 2019).
    """

    def group_loss(
        self, logits: Tensor, positive_B: Tensor, weight_B: Tensor, groups_B: Tensor
    ) -> Tensor:
        """Computes the mean over the positive rows of each row's group."""
        counted_B = weight_B > 0
        of_positives_B = torch.where(positive_B, weight_B, 0.0)
        positives_G = group_sum(of_positives_B, groups_B)
        negatives_G = group_sum(weight_B - of_positives_B, groups_B)
        loss_B = group_logsumexp(logits, groups_B, counted_B) - logits
        losses_G = group_sum(of_positives_B * loss_B, groups_B)
        tells_G = (positives_G > 0) & (negatives_G > 0)
        means_G = losses_G / torch.where(positives_G > 0, positives_G, 1.0)
        return torch.where(tells_G, means_G, 0.0)[groups_B]


class Jrc(Grouped):
    """Objective of JRC: `−ln softmax(f_y)_b` over the rows of the group, the mean over these.

    A row has two logits, f₀ and f₁; of row b the one of its own label y counts, beside that of all
    rows of its group. `P(y = 1) = σ(f₁ − f₀)`, which the cross-entropy of each row calibrates.
    The task's logits are z = f₁ − f₀ and s, their mean: `f₁ = s + z/2`, `f₀ = s − z/2`.

    Source: Sheng et al., "Joint optimization of ranking and calibration with contextualized hybrid
        model" (KDD 2023), section 3; `pointwise_weight` is its α.
    """

    def num_logits(self, task: TaskConfig) -> int:
        """Returns 2: z and s."""
        return 2

    def group_loss(
        self, logits: Tensor, positive_B: Tensor, weight_B: Tensor, groups_B: Tensor
    ) -> Tensor:
        """Computes the mean over the rows of each row's group."""
        z_B, s_B = logits.unbind(1)
        counted_B, weights_G = weight_B > 0, group_sum(weight_B, groups_B)
        loss_B = torch.zeros_like(z_B)
        for own_B, f_B in ((positive_B, s_B + z_B / 2), (~positive_B, s_B - z_B / 2)):
            of_label_B = group_logsumexp(f_B, groups_B, counted_B) - f_B
            loss_B = loss_B + torch.where(own_B & counted_B, of_label_B, 0.0)
        losses_G = group_sum(weight_B * loss_B, groups_B)
        return (losses_G / torch.where(weights_G > 0, weights_G, 1.0))[groups_B]

    def predictions(self, logits: Tensor, task: TaskConfig) -> Tensor:
        """Computes the probability, of z alone."""
        return super().predictions(logits[:, 0], task)
