"""Metrics that a task's config names: `NamedMetric`, and NDCG@k and recall@k, exact with ties.

One of somebody's own is a `NamedMetric`, tied to its config class by `mmoe.register.metric`. What a
kind always has is in `mmoe.metrics.task_kinds`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mmoe.metrics.auc import run_starts
from mmoe.metrics.columns import Column
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.task_kinds.base import TaskMetrics, empty_reason


class NamedMetric(ABC):
    """A number that judges the predictions of one task.

    Attributes:
        higher_is_better: Where it chooses the best checkpoint.
        of_events: Labels have to be 0 or 1, predictions the probability of 1.
        needs_groups: Rows have to have groups (`data.group_column`).
        column: How tables show it; `key` is its name.

    Args:
        config: What the task's config says of it, a section of its own class.
    """

    higher_is_better: ClassVar[bool]
    of_events: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    column: ClassVar[Column]

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def value(self, rows: ObservedRows) -> float | None:
        """Computes it over one row or more, whose weights are not all 0; None: it has none."""

    def judged(self, rows: ObservedRows) -> tuple[float | None, str | None]:
        """Returns its value, and a note on it, such as how many groups it rests on."""
        return self.value(rows), None


def with_named(
    found: TaskMetrics, rows: ObservedRows, metrics: Sequence[NamedMetric], name: str
) -> TaskMetrics:
    """Adds the values of named metrics to those of the kind of the task `name`."""
    values, notes = dict(found.values), list(found.notes)
    empty = empty_reason(rows) is not None  # the kind has said so
    for metric in metrics:
        value, note = (None, None) if empty else metric.judged(rows)
        finite = value is not None and math.isfinite(value)
        values[metric.column.key] = float(value) if finite and value is not None else None
        if not empty and not finite and note is None:
            note = f"{metric.column.key} not computed: it is {value}"
        notes += [] if note is None else [f"{name}: {note}"]
    return TaskMetrics(values, notes)


class GroupedRanking(NamedTuple):
    """Mean over the groups with a positive row; `value` is None where there is none."""

    value: float | None
    groups: int
    all_groups: int


def grouped_ndcg(
    labels: np.ndarray, scores: np.ndarray, groups: np.ndarray, k: int
) -> GroupedRanking:
    """Computes the mean NDCG@k of the groups that have a positive row; each group counts once.

    `DCG = Σ_{i ≤ k} y_i / log2(1 + i)` over a group's rows, the best scored first, divided by that
    of the best order. Rows of one score share the places that they take.

    Args:
        labels: [N] 0 or 1.
        scores: [N] any numbers but NaN; only their order matters.
        groups: [N] the key, of any type; a missing key (NaN, None) belongs to no group.
        k: Places that count.

    Example:
        >>> labels, users = np.array([0, 1, 1, 0]), np.array([7, 7, 8, 9])
        >>> grouped_ndcg(labels, np.array([0.9, 0.1, 0.5, 0.5]), users, k=10)
        GroupedRanking(value=0.8154648767857288, groups=2, all_groups=3)

    Source: Järvelin & Kekäläinen, Cumulated gain-based evaluation of IR techniques, TOIS 20(4),
    2002; ties as McSherry & Najork, ECIR 2008.
    """
    ranked = _Ranked.of(labels, scores, groups)
    if ranked is None:
        return GroupedRanking(None, 0, 0)
    gains = _discounts(ranked.ranks_N, k)
    best = np.concatenate([[0.0], np.cumsum(_discounts(np.arange(1, k + 1), k))])
    return ranked.mean(gains, best[np.minimum(ranked.positives_G, k)])


def grouped_recall(
    labels: np.ndarray, scores: np.ndarray, groups: np.ndarray, k: int
) -> GroupedRanking:
    """Computes the mean recall@k of the groups that have a positive row; each group counts once.

    A group's is the share of its positive rows that are among its k best scored ones. Rows of one
    score share the places that they take.

    Args:
        labels: [N] 0 or 1.
        scores: [N] any numbers but NaN; only their order matters.
        groups: [N] the key, of any type; a missing key (NaN, None) belongs to no group.
        k: Places that count.

    Example:
        >>> labels, users = np.array([0, 1, 1, 0]), np.array([7, 7, 8, 9])
        >>> grouped_recall(labels, np.array([0.9, 0.1, 0.5, 0.5]), users, k=1)
        GroupedRanking(value=0.5, groups=2, all_groups=3)
    """
    ranked = _Ranked.of(labels, scores, groups)
    if ranked is None:
        return GroupedRanking(None, 0, 0)
    return ranked.mean((ranked.ranks_N <= k).astype(np.float64), ranked.positives_G)


@dataclass(frozen=True)
class _Ranked:
    """Rows in order of their groups, and in each of their scores, the best first.

    Attributes:
        positive_N: 1 or 0.
        ranks_N: Of a row in its group, from 1.
        ties_K: Where each run of rows of one group and score begins.
        tie_group_K: The group of each run.
        positives_G: Positive rows of each group.
    """

    positive_N: np.ndarray
    ranks_N: np.ndarray
    ties_K: np.ndarray
    tie_group_K: np.ndarray
    positives_G: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, scores: np.ndarray, groups: np.ndarray) -> "_Ranked | None":
        """None: no row is in a group."""
        import pandas as pd  # late: who reads a config need not wait for it

        codes_N = pd.factorize(np.asarray(groups))[0]  # −1 where a key is missing
        order = np.lexsort((-np.asarray(scores, np.float64), codes_N))
        order = order[codes_N[order] >= 0]
        if not len(order):
            return None
        codes_N, scores = codes_N[order], np.asarray(scores)[order]
        positive_N = (np.asarray(labels)[order] > 0.5).astype(np.float64)
        first_G = run_starts(codes_N)
        sizes_G = np.diff(first_G, append=len(codes_N))
        ranks_N = np.arange(1, len(codes_N) + 1) - np.repeat(first_G, sizes_G)
        ties_K = run_starts(codes_N, scores)
        tie_group_K = np.searchsorted(first_G, ties_K, side="right") - 1
        positives_G = np.add.reduceat(positive_N, first_G).astype(np.int64)
        return cls(positive_N, ranks_N, ties_K, tie_group_K, positives_G)

    def mean(self, worth_N: np.ndarray, whole_G: np.ndarray) -> GroupedRanking:
        """Mean over groups with positives of what these got of the places' worth, by the whole."""
        sizes_K = np.diff(self.ties_K, append=len(self.positive_N))
        share_K = np.add.reduceat(self.positive_N, self.ties_K) / sizes_K
        got_K = share_K * np.add.reduceat(worth_N, self.ties_K)
        got_G = np.bincount(self.tie_group_K, weights=got_K, minlength=len(self.positives_G))
        has_G = self.positives_G > 0
        value = float((got_G[has_G] / whole_G[has_G]).mean()) if has_G.any() else None
        return GroupedRanking(value, int(has_G.sum()), len(has_G))


def _discounts(ranks: np.ndarray, k: int) -> np.ndarray:
    return np.where(ranks <= k, 1 / np.log2(1.0 + ranks), 0.0)


class _AtK(NamedMetric):
    """Named metric of the k best scored rows of each group.

    Attributes:
        of_groups: Computes it of labels, scores, groups and k.
    """

    of_groups: ClassVar["staticmethod[[np.ndarray, np.ndarray, np.ndarray, int], GroupedRanking]"]
    higher_is_better = True
    of_events = True
    needs_groups = True

    def value(self, rows: ObservedRows) -> float | None:
        """Computes it over rows that have groups."""
        return self.judged(rows)[0]

    def judged(self, rows: ObservedRows) -> tuple[float | None, str | None]:
        """Returns the mean over groups, and how many have a positive row."""
        if rows.groups is None:
            return None, f"{self.column.key} not computed: there is no data.group_column"
        counts = slice(None) if rows.weights is None else rows.weights > 0
        found = self.of_groups(
            rows.labels[counts], rows.predictions[counts], rows.groups[counts], self.config.k
        )
        name = f"{self.column.key}@{self.config.k}"
        if found.value is None:
            return None, f"{name} not computed: none of {found.all_groups:,} groups has a positive"
        left_out = "; the others have no positive" if found.groups < found.all_groups else ""
        return found.value, (
            f"{name} rests on {found.groups:,} of {found.all_groups:,} groups{left_out}"
        )


class Ndcg(_AtK):
    """Metric `ndcg`: see `grouped_ndcg`."""

    column: ClassVar = Column(
        key="ndcg",
        heading="NDCG@k",
        meaning="order of the k best scored rows of each group (user), 1 is the best possible; "
        "mean over the groups with a positive row",
        title="NDCG",
    )
    of_groups = staticmethod(grouped_ndcg)


class Recall(_AtK):
    """Metric `recall`: see `grouped_recall`."""

    column: ClassVar = Column(
        key="recall",
        heading="recall@k",
        meaning="share of a group's positive rows among its k best scored ones; mean over the "
        "groups (users) with a positive row",
        title="recall",
    )
    of_groups = staticmethod(grouped_recall)
