"""Influence of each test row on a metric: intervals of means and differences follow from it."""

from collections.abc import Callable

import numpy as np

from mmoe.metrics.calibration import row_log_losses
from mmoe.metrics.observed import ObservedRows


def row_terms(metric: str, rows: ObservedRows) -> np.ndarray | None:
    """Computes a term for each row, whose squares add up to the variance of the metric.

    Terms of several predictions for the same rows are added, averaged and subtracted as the metrics
    are: `Σ (a − b)²` is the variance of the difference of two. For `auc` that is DeLong's; for
    `ne`, `rmse`, `mae` and `r2` the first order of the metric's change by a row; for `accuracy`
    that of a mean.

    Args:
        metric: Its key in metrics.json, or `r2`.
        rows: Where the label is observed.

    Returns:
        float64 [n]; None for other metrics, and where there are too few rows: two of each class for
        `auc`, else two.

    Example:
        >>> from mmoe.metrics.delong import auc_difference_interval
        >>> labels = np.array([0, 0, 0, 1, 1, 1.0])
        >>> scores = [np.arange(6.0), np.array([0, 4, 1, 2, 3, 5.0])]
        >>> one, two = (row_terms("auc", of_predictions(labels, each)) for each in scores)
        >>> delong = auc_difference_interval(labels, *scores)
        >>> bool(np.isclose(((one - two) ** 2).sum() ** 0.5, delong.standard_error))
        True

    Source: DeLong et al., Biometrics 44(3), 1988.
    """
    terms = _TERMS.get(metric)
    if terms is None or len(rows) < 2:
        return None
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    return terms(rows.labels, rows.predictions, weights) if weights.sum() > 0 else None


def of_predictions(labels: np.ndarray, predictions: np.ndarray) -> ObservedRows:
    """Returns rows that are all observed and count once."""
    return ObservedRows(
        labels=labels, predictions=predictions, weights=None, groups=None, oracle=None
    )


def r_squared(rows: ObservedRows) -> float | None:
    """Returns the share of the labels' variance that predictions explain; None where all agree.

    Example:
        >>> r_squared(of_predictions(np.array([1.0, 2, 3]), np.array([1.0, 2, 2])))
        0.5
    """
    if len(rows) == 0 or (rows.weights is not None and rows.weights.sum() == 0):
        return None
    mean = np.average(rows.labels, weights=rows.weights)
    variance = float(np.average((rows.labels - mean) ** 2, weights=rows.weights))
    error = float(np.average((rows.labels - rows.predictions) ** 2, weights=rows.weights))
    return 1 - error / variance if variance > 0 else None


def auc_terms(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Computes the AUC, and DeLong's term of each row.

    (V − AUC) / √(P (P − 1)) of a positive, and likewise of a negative; V as in `delong`.

    Args:
        labels: [n] 0 or 1.
        scores: [n] any numbers but NaN; only their order matters.
        weights: [n] non-negative; at least two rows of each class have some.
    """
    positive = labels > 0.5
    classes = (positive & (weights > 0), ~positive & (weights > 0))
    _, place = np.unique(scores, return_inverse=True)
    terms, below_N = np.zeros(len(labels)), np.zeros(len(labels))
    for mine, other, side in ((classes[0], classes[1], 1.0), (classes[1], classes[0], -1.0)):
        per_score = np.bincount(place, weights=np.where(other, weights, 0.0))
        below_N[mine] = (np.cumsum(per_score) - per_score / 2)[place[mine]] / per_score.sum()
        # Of a negative V is the share of positives above it: one less those below
        terms[mine] = side * _centred(below_N[mine], weights[mine])
    value = float(np.average(below_N[classes[0]], weights=weights[classes[0]]))
    return value, terms


def _auc_terms(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    positives = int((labels[weights > 0] > 0.5).sum())
    if min(positives, int((weights > 0).sum()) - positives) < 2:
        return None
    return auc_terms(labels, scores, weights)[1]


def _centred(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Terms of a weighted mean, with n − 1 in the variance."""
    total, count = weights.sum(), len(values)
    mean = (weights * values).sum() / total
    return weights * (values - mean) / total * np.sqrt(count / (count - 1))


def _ne_terms(
    labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    """Terms of `loss / entropy(rate)`: a row moves the loss, and by its label the rate."""
    rate = float(np.average(labels, weights=weights))
    if not 0 < rate < 1:
        return None
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    losses = row_log_losses(labels, predictions)
    value = np.average(losses, weights=weights) / entropy
    slope = np.log((1 - rate) / rate)  # of the entropy by the rate
    return _centred(losses - value * slope * labels, weights) / entropy


def _rmse_terms(labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> np.ndarray:
    squares = (predictions - labels) ** 2
    root = np.sqrt(np.average(squares, weights=weights))
    return _centred(squares, weights) / (2 * root) if root > 0 else np.zeros(len(labels))


def _r2_terms(
    labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    squares = (predictions - labels) ** 2
    spread = (labels - np.average(labels, weights=weights)) ** 2
    error, variance = (float(np.average(x, weights=weights)) for x in (squares, spread))
    if variance == 0:
        return None
    return -_centred(squares - error / variance * spread, weights) / variance


_TERMS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray | None]] = {
    "auc": _auc_terms,
    "ne": _ne_terms,
    "accuracy": lambda y, p, w: _centred((np.rint(p) == y).astype(np.float64), w),
    "rmse": _rmse_terms,
    "mae": lambda y, p, w: _centred(np.abs(p - y), w),
    "r2": _r2_terms,
}
