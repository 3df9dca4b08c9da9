"""Curves of a task for curves.json: ROC, calibration and the histogram of the predictions."""

from typing import Any

import numpy as np

from mmoe.metrics.auc import roc_points
from mmoe.metrics.calibration import ECE_BINS, calibration_bins
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.task_kinds import KindName, kind_of
from mmoe.metrics.task_kinds.base import observed_rows

ROC_POINTS = 200
HISTOGRAM_BINS = 60
# Six decimals place a point a thousand times finer than a screen can show it.
_DECIMALS = 6


def task_curves(
    kind: KindName,
    labels: np.ndarray,
    predictions: np.ndarray,
    observed: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    oracle: np.ndarray | None = None,
    name: str = "task",
    further: np.ndarray | None = None,
) -> dict[str, Any]:
    """Computes the curves of one task, as plain lists for JSON.

    Args:
        kind: The task's, as in a config.
        labels: [N] as `task_metrics` takes them.
        predictions: [N] probabilities, or numbers for regression.
        observed: [N] bool; None = everywhere.
        weights: [N] non-negative row weights (they weigh the ROC and the bins, not the histogram).
        oracle: [N] true probabilities, where known.
        name: The task's name, for errors.
        further: [N, K] as `task_metrics` takes them.

    Returns:
        `roc` and `oracle_roc`: {"fpr", "tpr"} of at most 200 points, or None (regression, one class
        only, oracle unknown). `calibration`: 20 bins of equal frequency, each {"mean_prediction",
        "positive_rate", "rows"} (for regression the rate is the mean label). `histogram`: {"edges",
        "rows"}, predictions counted in 60 equal steps.

    Raises:
        ValueError: As `task_metrics`.

    Example:
        >>> curves = task_curves("binary", np.array([0, 1]), np.array([0.25, 0.75]))
        >>> curves["roc"]
        {'fpr': [0.0, 0.0, 1.0], 'tpr': [0.0, 1.0, 1.0]}
        >>> curves["calibration"][0]
        {'mean_prediction': 0.25, 'positive_rate': 0.0, 'rows': 1}
    """
    judged = kind_of(kind, name)
    rows = observed_rows(
        judged,
        labels,
        predictions,
        observed,
        weights=weights,
        oracle=oracle,
        name=name,
        further=further,
    )
    outcomes, predicted = judged.calibrated(rows)
    return {
        "roc": _roc(rows, rows.predictions) if judged.is_event else None,
        "oracle_roc": _roc(rows, rows.oracle) if judged.is_event else None,
        "calibration": _calibration(outcomes, predicted, rows.weights),
        "histogram": _histogram(predicted, from_zero=judged.is_event),
    }


def thin_curve(
    x: np.ndarray, y: np.ndarray, points: int = ROC_POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """Keeps at most `points` of a curve that rises from (0, 0) to (1, 1).

    Points of the curve are kept at equal steps of x + y, so steep and flat stretches keep as many
    as they need, and what is drawn strays from the curve by less than 2 / (points − 2).

    Args:
        x: [n] non-decreasing.
        y: [n] non-decreasing.
        points: At least 3.

    Example:
        >>> line = np.linspace(0, 1, 1001)
        >>> thin_curve(line, line, points=5)[0].tolist()
        [0.0, 0.334, 0.667, 1.0]
    """
    if len(x) <= points:
        return x, y
    length = x + y
    steps = np.linspace(0.0, length[-1], points - 1)
    kept = np.unique(np.searchsorted(length, steps))
    kept = np.unique(np.concatenate([[0], np.minimum(kept, len(x) - 1), [len(x) - 1]]))
    return x[kept], y[kept]


def _roc(rows: ObservedRows, scores: np.ndarray | None) -> dict[str, list[float]] | None:
    curve = None if scores is None else roc_points(rows.labels, scores, rows.weights)
    if curve is None:
        return None
    fpr, tpr = thin_curve(*curve)
    return {"fpr": _rounded(fpr), "tpr": _rounded(tpr)}


def _calibration(
    outcomes: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None
) -> list[dict[str, float | int]]:
    return [
        {
            "mean_prediction": each.mean_prediction,
            "positive_rate": each.mean_label,
            "rows": each.rows,
        }
        for each in calibration_bins(outcomes, predicted, weights, ECE_BINS)
    ]


def _histogram(predictions: np.ndarray, from_zero: bool) -> dict[str, list[Any]]:
    if len(predictions) == 0:
        return {"edges": [], "rows": []}
    low = 0.0 if from_zero else float(predictions.min())
    high = float(predictions.max())
    if not high > low:
        # One value only: a bar of some width around it, so that it can be drawn.
        reach = max(abs(low), 1.0) * 0.5
        low, high = (0.0, 1.0) if from_zero else (low - reach, low + reach)
    counts, edges = np.histogram(predictions, bins=HISTOGRAM_BINS, range=(low, high))
    return {"edges": edges.tolist(), "rows": counts.tolist()}


def _rounded(values: np.ndarray) -> list[float]:
    return np.round(values, _DECIMALS).tolist()
