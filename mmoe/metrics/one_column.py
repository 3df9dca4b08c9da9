"""Measures of how well one column alone predicts a label, which find leaks."""

import numpy as np

TOO_GOOD = 0.99  # AUC that no honest column reaches alone
SURE = 3.3  # standard errors above chance: few rows reach any AUC by luck
SMOOTHING = 1.0  # rows of the base rate added to each value
UNLIKELY = 1e-6


def auc_of_counts(scores_K: np.ndarray, positives_K: np.ndarray, negatives_K: np.ndarray) -> float:
    """Returns the AUC of rows that are counted by score, ties counting half; NaN with one class.

    Args:
        scores_K: Of K sets of rows, in any order; equal scores are ties.
        positives_K: Rows of each set that are positive.
        negatives_K: Those that are not.

    Example:
        >>> auc_of_counts(np.array([0.1, 0.4, 0.8]), np.array([0, 1, 1]), np.array([1, 1, 0]))
        0.875
    """
    order = np.argsort(scores_K, kind="stable")
    starts = np.flatnonzero(np.diff(scores_K[order], prepend=np.nan) != 0)
    positives, negatives = (
        np.add.reduceat(counts_K[order].astype(np.float64), starts) if len(starts) else np.zeros(0)
        for counts_K in (positives_K, negatives_K)
    )
    pairs = float(positives.sum() * negatives.sum())
    if not pairs:
        return float("nan")
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / pairs)


def auc_by_order(codes_N: np.ndarray, size: int, labels_N: np.ndarray) -> float:
    """Returns the AUC of a column's order.

    Args:
        codes_N: Rank of each row's value among the values, int, 0 … size − 1.
        size: Number of values.
        labels_N: 0 or 1.

    Example:
        >>> auc_by_order(np.array([0, 1, 1, 2]), 3, np.array([0, 0, 1, 1]))
        0.875
    """
    total_K, positives_K = _counts(codes_N, size, labels_N)
    return auc_of_counts(np.arange(size), positives_K, total_K - positives_K)


def auc_by_rates(codes_N: np.ndarray, size: int, labels_N: np.ndarray, half_N: np.ndarray) -> float:
    """Returns the AUC of each value's rate of positives in the other half of the rows.

    A value that is seen once says nothing then: its rate is the base rate.

    Args:
        codes_N: Code of each row's value, int, 0 … size − 1.
        size: Number of codes.
        labels_N: 0 or 1.
        half_N: Which half a row belongs to, bool.
    """
    base = float(labels_N.mean())
    halves = [_counts(codes_N[half], size, labels_N[half]) for half in (~half_N, half_N)]
    scores = [(positives + base * SMOOTHING) / (total + SMOOTHING) for total, positives in halves]
    (total_0, positives_0), (total_1, positives_1) = halves
    return auc_of_counts(
        np.concatenate([scores[1], scores[0]]),  # of the other half
        np.concatenate([positives_0, positives_1]),
        np.concatenate([total_0 - positives_0, total_1 - positives_1]),
    )


def enough_to_tell(positives: int, negatives: int, auc: float, sure: float) -> bool:
    """Returns whether so many rows of each class reach an AUC by no luck.

    Args:
        positives: Rows.
        negatives: Rows.
        auc: That is to be told from 0.5.
        sure: Standard errors that it must be away.
    """
    if min(positives, negatives) < 5:
        return False
    error = np.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    return bool((auc - 0.5) / error >= sure)


def implies_label(nonzero_N: np.ndarray, labels_N: np.ndarray) -> bool:
    """Returns whether the label is 1 wherever a column is not 0: likely known afterwards.

    Args:
        nonzero_N: Where the column is neither 0 nor missing.
        labels_N: 0 or 1.
    """
    rows = int(nonzero_N.sum())
    rate = float(labels_N.mean()) if len(labels_N) else 1.0
    return bool(
        0 < rows < len(labels_N) / 2
        and labels_N[nonzero_N].all()
        and rate < 0.5
        and rate**rows < UNLIKELY
    )


def mid_ranks(values_N: np.ndarray) -> np.ndarray:
    """Returns ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def same_order(one_N: np.ndarray, other_N: np.ndarray) -> float:
    """Returns Spearman's rank correlation; 0 where one of them is constant or there is no row.

    Example:
        >>> same_order(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
        1.0
    """
    if len(one_N) < 2 or one_N.min() == one_N.max() or other_N.min() == other_N.max():
        return 0.0
    return float(np.corrcoef(mid_ranks(one_N), mid_ranks(other_N))[0, 1])


def _counts(codes_N: np.ndarray, size: int, labels_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and positives of each code."""
    total_K = np.bincount(codes_N, minlength=size)
    return total_K, np.bincount(codes_N, weights=labels_N, minlength=size)
