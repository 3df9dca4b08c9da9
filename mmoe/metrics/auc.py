"""Areas under the ROC curve (overall, within groups) and the precision-recall curve, with ties.

scikit-learn's `roc_auc_score` takes twice the time and differs in the last bit: it adds floats.
"""

from typing import NamedTuple

import numpy as np


class GroupedAuc(NamedTuple):
    """GAUC and what it rests on: `value` is None where no group has both classes."""

    value: float | None
    groups: int
    all_groups: int
    rows: int


def auc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Returns the share of (positive, negative) pairs that the scores put in the right order.

    `AUC = Σ_p Σ_n w_p w_n ([s_p > s_n] + ½ [s_p = s_n]) / (Σ_p w_p · Σ_n w_n)`, computed from ranks
    in O(N log N); without weights the pairs are counted in integers, so the result is exact.

    Args:
        labels: [N] 0 or 1.
        scores: [N] any numbers but NaN; only their order matters.
        weights: [N] non-negative; None counts every row once.

    Returns:
        The AUC, or None where one of the classes is absent (or has no weight).

    Example:
        >>> auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
        0.75

    Source: Hanley & McNeil 1982, the Wilcoxon statistic with ties counted by half.
    """
    if len(labels) == 0:
        return None
    positive, negative = _by_score(labels, scores, weights)
    below = np.cumsum(negative) - negative
    pairs = positive.sum().item() * negative.sum().item()
    # Python integers divide with one rounding, whatever their size.
    wins = (positive * (2 * below + negative)).sum().item()
    return wins / (2 * pairs) if pairs > 0 else None


def grouped_auc(
    labels: np.ndarray, scores: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None
) -> GroupedAuc:
    """Computes GAUC: the mean of the groups' AUCs, weighted by their impressions.

    `GAUC = Σ_g n_g · AUC_g / Σ_g n_g` over the groups g (usually users) that have both classes;
    n_g is the number of rows of g, or their weight. It measures the order that one user sees, which
    knowing the differences *between* users does not improve.

    Args:
        labels: [N] 0 or 1.
        scores: [N] any numbers but NaN.
        groups: [N] the key, of any type; a missing key (NaN, None) belongs to no group.
        weights: [N] non-negative; None counts every row once.

    Returns:
        The value, the groups that counted, all groups, and the rows in the groups that counted.

    Example:
        >>> labels, users = np.array([0, 1, 1, 0, 1]), np.array([7, 7, 7, 8, 9])
        >>> grouped_auc(labels, np.array([1, 2, 3, 4, 5]), users)
        GroupedAuc(value=1.0, groups=1, all_groups=3, rows=3)

    Source: Zhu et al., Optimized Cost per Click in Taobao Display Advertising, KDD 2017; with
    impressions as weights also in Zhou et al., Deep Interest Network, KDD 2018.
    """
    import pandas as pd  # late: who reads a config need not wait for it

    codes, keys = pd.factorize(np.asarray(groups))
    order = np.lexsort((scores, codes))
    order = order[codes[order] >= 0]
    if len(order) == 0:
        return GroupedAuc(None, 0, len(keys), 0)
    codes, scores = codes[order], scores[order]
    positive_row, negative_row = class_weights(labels[order], weights, order)
    ties = run_starts(codes, scores)
    positive, negative = np.add.reduceat(positive_row, ties), np.add.reduceat(negative_row, ties)
    first = run_starts(codes[ties])
    tie_group = np.repeat(np.arange(len(first)), np.diff(first, append=len(ties)))
    below = np.cumsum(negative) - negative
    below = below - below[first][tie_group]
    wins = np.add.reduceat(positive * (2 * below + negative), first)
    positives, negatives = np.add.reduceat(positive, first), np.add.reduceat(negative, first)
    both = (positives > 0) & (negatives > 0)
    rows = int(np.diff(run_starts(codes), append=len(codes))[both].sum())
    if not both.any():
        return GroupedAuc(None, 0, len(keys), 0)
    per_group = wins[both] / (2.0 * positives[both] * negatives[both])
    value = float(np.average(per_group, weights=(positives + negatives)[both]))
    return GroupedAuc(value, int(both.sum()), len(keys), rows)


def average_precision(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> float | None:
    """Returns the area under the precision-recall curve, as a sum of steps.

    `AP = Σ_k (R_k − R_{k−1}) P_k` over the distinct scores, highest first, with the precision
    P_k and the recall R_k of all rows scored at least that high. Guessing has the positives' share.

    Args:
        labels: [N] 0 or 1.
        scores: [N] any numbers but NaN; only their order matters.
        weights: [N] non-negative; None counts every row once.

    Returns:
        The average precision, or None where no row is positive (or has weight).

    Example:
        >>> round(average_precision(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])), 4)
        0.8333
    """
    if len(labels) == 0:
        return None
    positive, negative = _by_score(labels, scores, weights, highest_first=True)
    found, taken = np.cumsum(positive), np.cumsum(positive + negative)
    if found[-1] <= 0:
        return None
    steps = positive > 0  # where recall grows; also no division by the weight of no row
    return float((positive[steps] * (found[steps] / taken[steps])).sum() / found[-1])


def roc_points(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns false and true positive rate at every distinct score, highest score first.

    Args:
        labels: [N] 0 or 1.
        scores: [N] any numbers but NaN.
        weights: [N] non-negative; None counts every row once.

    Returns:
        (false positive rates, true positive rates), each [points] from 0 to 1, rows of one score
        taken together; None where one of the classes is absent.

    Example:
        >>> fpr, tpr = roc_points(np.array([0, 1, 1]), np.array([0.2, 0.2, 0.9]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 1.0], [0.0, 0.5, 1.0])
    """
    if len(labels) == 0:
        return None
    positive, negative = map(np.cumsum, _by_score(labels, scores, weights, highest_first=True))
    if positive[-1] <= 0 or negative[-1] <= 0:
        return None
    return (
        np.concatenate([[0.0], negative / negative[-1]]),
        np.concatenate([[0.0], positive / positive[-1]]),
    )


def _by_score(
    labels: np.ndarray,
    scores: np.ndarray,
    weights: np.ndarray | None,
    *,
    highest_first: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the positives and of the negatives at every distinct score.

    Where rows are counted any order of equal scores will do, and NumPy's quickest takes a sixth of
    the time; sums of weights could tell.
    """
    order = np.argsort(scores, kind=None if weights is None else "stable")
    order = order[::-1] if highest_first else order
    starts = run_starts(scores[order])
    positive, negative = class_weights(labels[order], weights, order)
    return np.add.reduceat(positive, starts), np.add.reduceat(negative, starts)


def class_weights(
    labels: np.ndarray, weights: np.ndarray | None, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns each row's weight as a positive and as a negative; integers without weights."""
    positive = np.asarray(labels) > 0.5
    if weights is None:
        return positive.astype(np.int64), (~positive).astype(np.int64)
    weights = np.asarray(weights, dtype=np.float64)[order]
    return np.where(positive, weights, 0.0), np.where(positive, 0.0, weights)


def run_starts(*keys: np.ndarray) -> np.ndarray:
    """Returns where each run of equal rows begins in sorted keys."""
    changed = np.zeros(len(keys[0]), dtype=bool)
    changed[0] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)
