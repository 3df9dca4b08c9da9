"""How sure metrics are: the influence of each test row, and DeLong's intervals of AUCs."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

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
        >>> from mmoe.metrics.intervals import auc_difference_interval
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


class AucInterval(NamedTuple):
    """An AUC, its confidence interval within 0 to 1, and its standard error.

    Attributes:
        auc: Of the rows that count.
        low: Lower end.
        high: Upper end.
        standard_error: Of `auc`, not of its logit.
    """

    auc: float
    low: float
    high: float
    standard_error: float


def auc_interval(
    labels: np.ndarray,
    scores: np.ndarray,
    weights: np.ndarray | None = None,
    confidence: float = 0.95,
) -> AucInterval | None:
    """Computes the AUC of one model with DeLong's interval.

    `Var(AUC) = Var_p(V) / P + Var_n(V) / N`, where V of a positive is the share of the negatives it
    beats and V of a negative the share of the positives that beat it. With weights the shares are
    of weight, and a class' term is `Σ w² (V − AUC)² / (Σ w)² · n / (n − 1)`; weights that are the
    same for all rows of a class change nothing. The interval is symmetric in the logit of the AUC:
    of 50 positives and an AUC of 0.97 it held the truth in 91 % of 700 samples, on the plain scale
    in 88 %.

    Args:
        labels: [N] 0 or 1.
        scores: [N] any numbers but NaN; only their order matters.
        weights: [N] non-negative; None counts every row once. Rows of weight 0 are left out.
        confidence: Of the interval, between 0 and 1.

    Returns:
        The interval, or None where a class has fewer than two rows: no variance can be seen there.

    Raises:
        ValueError: A confidence that is not between 0 and 1.

    Example:
        >>> found = auc_interval(np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 4, 2, 3, 5]))
        >>> round(found.auc, 4), round(found.low, 4), round(found.high, 4)
        (0.7778, 0.173, 0.9832)

    Source: DeLong et al., Biometrics 44(3), 1988; logit: Qin & Hotilovac, Comparison of
    non-parametric confidence intervals for the area under the ROC curve, Stat. Methods Med. Res.
    17(2), 2008.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    weights_N = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    counts = weights_N > 0
    labels, scores, weights_N = np.asarray(labels)[counts], scores[counts], weights_N[counts]
    positives = int((labels > 0.5).sum())
    if min(positives, len(labels) - positives) < 2:
        return None
    value, terms = auc_terms(labels, scores, weights_N)
    error = float(np.sqrt((terms**2).sum()))
    low, high = _around(value, error, NormalDist().inv_cdf(0.5 + confidence / 2))
    return AucInterval(value, low, high, error)


def _around(value: float, error: float, deviations: float) -> tuple[float, float]:
    """The interval of a share on the logit's scale: within 0 to 1, and wider towards one half."""
    if error == 0 or not 0 < value < 1:
        return value, value
    middle = math.log(value / (1 - value))
    reach = deviations * error / (value * (1 - value))
    low, high = (1 / (1 + math.exp(-x)) for x in (middle - reach, middle + reach))
    return low, high


class AucDifference(NamedTuple):
    """Two AUCs, their difference, its confidence interval, standard error and p-value.

    Attributes:
        auc_a: Of the first model.
        auc_b: Of the second one.
        difference: `auc_a − auc_b`.
        low: Lower end of its interval.
        high: Upper end.
        standard_error: Of the difference.
        p_value: Two-sided, of no difference.
    """

    auc_a: float
    auc_b: float
    difference: float
    low: float
    high: float
    standard_error: float
    p_value: float


def auc_difference_interval(
    labels: np.ndarray, scores_a: np.ndarray, scores_b: np.ndarray, confidence: float = 0.95
) -> AucDifference:
    """Computes the paired difference of two AUCs, with DeLong's interval.

    `Var(AUC_a − AUC_b) = Var_p(V_a − V_b) / P + Var_n(V_a − V_b) / N`, where V of a positive is
    the share of the negatives it beats and V of a negative the share of the positives that beat it.
    Both come from counts by score, so it takes O(n log n).

    Args:
        labels: [n] 0 or 1, at least two of each.
        scores_a: [n] scores of the first model.
        scores_b: [n] scores of the second model, for the same rows in the same order.
        confidence: Of the interval, between 0 and 1.

    Raises:
        ValueError: The lengths differ, a score is NaN, or a class has fewer than two rows.

    Example:
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> result = auc_difference_interval(labels, np.arange(6), np.array([0, 4, 1, 2, 3, 5]))
        >>> round(result.difference, 4), round(result.low, 4), round(result.high, 4)
        (0.2222, -0.2647, 0.7092)

    Source: DeLong et al., Biometrics 44(3), 1988; fast by Sun & Xu, Fast Implementation of DeLong's
    Algorithm, IEEE Signal Processing Letters 21(11), 2014.
    """
    labels = np.asarray(labels)
    columns = [np.asarray(scores, dtype=np.float64) for scores in (scores_a, scores_b)]
    _check(labels, columns, confidence)
    ones = np.ones(len(labels))
    (auc_a, terms_a), (auc_b, terms_b) = (auc_terms(labels, scores, ones) for scores in columns)
    # Of paired differences: both models judge the same rows, so most of the noise is shared
    error, difference = float(np.sqrt(((terms_a - terms_b) ** 2).sum())), auc_a - auc_b
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * error
    if error > 0:
        p_value = 2 * NormalDist().cdf(-abs(difference) / error)
    else:
        p_value = 1.0 if difference == 0 else 0.0
    return AucDifference(
        auc_a, auc_b, difference, difference - reach, difference + reach, error, p_value
    )


def _check(labels: np.ndarray, columns: list[np.ndarray], confidence: float) -> None:
    for name, scores in zip(("scores_a", "scores_b"), columns, strict=True):
        if scores.shape != labels.shape:
            raise ValueError(
                f"{name} has shape {scores.shape}, labels {labels.shape}; both need one value a row"
            )
        if np.isnan(scores).any():
            raise ValueError(f"{name}, row {int(np.isnan(scores).argmax())}: the score is NaN")
    positives = int((labels > 0.5).sum())
    if min(positives, len(labels) - positives) < 2:
        raise ValueError(
            f"labels: an interval needs two rows of each class, got {positives} positive and "
            f"{len(labels) - positives} negative; take more rows"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
