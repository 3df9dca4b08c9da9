"""Normalised Gini coefficient: how well predictions order values such as spend."""

import numpy as np


def normalised_gini(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> float | None:
    """Computes `cov(y, F(s)) / cov(y, F(y))`, F the share of rows below, ties counting half.

    1: rows are ordered by score as by label; 0: as by chance; −1: the wrong way round. Of labels
    that are 0 or 1 it is `2 AUC − 1`.

    Args:
        labels: [N] numbers, N ≥ 1.
        scores: [N] any finite numbers; only their order matters.
        weights: [N] non-negative, not all zero; None counts every row once.

    Returns:
        The coefficient, or None where all labels are equal.

    Example:
        >>> round(normalised_gini(np.array([0.0, 1.0, 5.0]), np.array([1.0, 3.0, 2.0])), 3)
        0.2

    Source: Lerman and Yitzhaki, "A note on the calculation and interpretation of the Gini index"
        (Economics Letters 15, 1984); as a metric of predicted value in Wang et al.,
        arXiv 1912.07753, section 5.2.
    """
    labels = np.asarray(labels, np.float64)
    weights = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    counted_N = labels[weights > 0]
    if counted_N.min() == counted_N.max():  # of which roundings would make an order
        return None
    centred = weights * (labels - np.average(labels, weights=weights))
    best = float((centred * _below(labels, weights)).sum())
    return float((centred * _below(np.asarray(scores), weights)).sum()) / best if best else None


def _below(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weight of the rows with a smaller value, and half of those with the same."""
    _, places = np.unique(values, return_inverse=True)
    total = np.bincount(places, weights=weights)
    return (np.cumsum(total) - total / 2)[places]
