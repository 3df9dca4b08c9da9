"""Metrics and curves of one task, on exactly the rows where its label is observed, in float64."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmoe.metrics.auc import roc_points
from mmoe.metrics.calibration import ECE_BINS, calibration_bins
from mmoe.metrics.columns import WITH_BIAS
from mmoe.metrics.named import NamedMetric, with_named
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.task_kinds import HIGHER_IS_BETTER, KindName, kind_of
from mmoe.metrics.task_kinds.base import TaskMetrics, empty_reason, observed_rows


def task_metrics(
    kind: KindName,
    labels: np.ndarray,
    predictions: np.ndarray,
    observed: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    oracle: np.ndarray | None = None,
    name: str = "task",
    named: Sequence[NamedMetric] = (),
    *,
    further: np.ndarray | None = None,
    intervals: bool = False,
) -> TaskMetrics:
    """Computes every metric of one task; None stands where one cannot be computed.

    Args:
        kind: The task's, as in a config.
        labels: [N] 0 or 1, or a number for regression; ignored where unobserved.
        predictions: [N] probabilities, or a number for regression; finite in every row.
        observed: [N] bool, where the label exists; None = everywhere.
        weights: [N] non-negative row weights; they weigh every metric but not the counts.
        groups: [N] keys of GAUC (usually the user).
        oracle: [N] the true probability of a positive label, where the data's generator knows it.
        name: The task's name, for notes and errors.
        named: Further metrics, which the task's config names.
        further: [N, K] what the task predicts beside its one number (`TaskConfig.further`).
        intervals: Also say how sure they are, where the kind can.

    Returns:
        `(values, notes)`: metrics of the kind (`mmoe.metrics.task_kinds`), then the named ones.

    Raises:
        ValueError: A column has the wrong length, a prediction is NaN, infinite or no probability,
            or an observed label is wrong; the message names the task and the row.

    Example:
        >>> values, notes = task_metrics("binary", np.array([0, 1, 1]), np.array([0.2, 0.9, 0.4]))
        >>> values["auc"], values["rows"], values["positives"]
        (1.0, 3, 2)
        >>> task_metrics("binary", np.array([0, 0]), np.array([0.2, 0.9]), name="buy").notes
        ['buy: auc, ne, calibration not computed: all 2 observed rows are negative']
    """
    judged = kind_of(kind, name)
    rows = observed_rows(
        judged,
        labels,
        predictions,
        observed,
        weights=weights,
        groups=groups,
        oracle=oracle,
        further=further,
        name=name,
    )
    found = judged.metrics(rows, name)
    if intervals and empty_reason(rows) is None:
        sure = judged.intervals(rows, name)
        found = TaskMetrics(found.values | sure.values, [*found.notes, *sure.notes])
    return with_named(found, rows, named, name)


_LEAST_GAIN = -1.0


def monitor_value(metrics: Mapping[str, Mapping[str, Any]], monitor: str) -> float | None:
    """Returns the number that decides which checkpoint is kept.

    Args:
        metrics: Task → its metrics, as `task_metrics(...).values`.
        monitor: `TASK.METRIC`, or `mean.METRIC`: the mean over the tasks that have a value. `gain`
            is one scale for events and numbers; below -1 it counts as -1 in the mean, so that a
            task which is far off does not decide alone.

    Returns:
        The value, or None where it cannot be computed (one class only in the validation split).

    Raises:
        ValueError: No such task or metric.

    Example:
        >>> metrics = {"click": {"auc": 0.7}, "buy": {"auc": 0.8}, "like": {"auc": None}}
        >>> monitor_value(metrics, "mean.auc")
        0.75
    """
    task, _, metric = monitor.rpartition(".")
    higher_is_better(monitor)
    if task != "mean" and task not in metrics:
        raise ValueError(
            f"monitor {monitor!r}: no task {task!r}; tasks: {', '.join(metrics)} (or mean)"
        )
    watched = list(metrics.values()) if task == "mean" else [metrics[task]]
    having = [values[metric] for values in watched if metric in values]
    if not having:
        raise ValueError(
            f"monitor {monitor!r}: the task has no {metric}; it needs another kind of task"
        )
    known = [float(value) for value in having if value is not None]
    if monitor == "mean.gain":
        known = [max(value, _LEAST_GAIN) for value in known]
    return float(np.mean(known)) if known else None


def higher_is_better(monitor: str) -> bool:
    """Returns the direction of a monitor: True for auc, False for losses and errors.

    Raises:
        ValueError: The metric cannot be monitored.

    Example:
        >>> higher_is_better("mean.auc"), higher_is_better("click.logloss")
        (True, False)
    """
    metric = monitor.rpartition(".")[2].removesuffix(WITH_BIAS)
    if metric not in HIGHER_IS_BETTER:
        known = ", ".join(HIGHER_IS_BETTER)
        raise ValueError(f"monitor {monitor!r}: unknown metric {metric!r}; expected one of {known}")
    return HIGHER_IS_BETTER[metric]


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
