"""Metrics of one task, on exactly the rows where its label is observed, in float64."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mmoe.metrics.auc import GroupedAuc, auc, grouped_auc, roc_points
from mmoe.metrics.calibration import (
    calibration_ratio,
    expected_calibration_error,
    log_loss,
    normalised_entropy,
)
from mmoe.metrics.delong import AucDifference, auc_difference_interval
from mmoe.metrics.observed import Kind, ObservedRows, observed_rows

__all__ = [
    "AucDifference",
    "GroupedAuc",
    "TaskMetrics",
    "auc",
    "auc_difference_interval",
    "calibration_ratio",
    "expected_calibration_error",
    "grouped_auc",
    "higher_is_better",
    "log_loss",
    "monitor_value",
    "normalised_entropy",
    "roc_points",
    "task_metrics",
]

Value = float | int | None
_HIGHER_IS_BETTER = {"auc": True, "logloss": False, "ne": False, "rmse": False, "mae": False}


class TaskMetrics(NamedTuple):
    """What metrics.json holds for a task, and sentences on what could not be computed, and why."""

    values: dict[str, Value]
    notes: list[str]


def task_metrics(
    kind: Kind,
    labels: np.ndarray,
    predictions: np.ndarray,
    observed: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    oracle: np.ndarray | None = None,
    name: str = "task",
) -> TaskMetrics:
    """Every metric of one task; None stands where one cannot be computed.

    Args:
        kind: binary or regression.
        labels: [N] 0 or 1, or a number for regression; ignored where unobserved.
        predictions: [N] probabilities, or a number for regression; finite in every row.
        observed: [N] bool, where the label exists; None = everywhere.
        weights: [N] non-negative row weights; they weigh every metric but not the counts.
        groups: [N] keys of GAUC (usually the user).
        oracle: [N] the true probability of a positive label, where the data's generator knows it.
        name: The task's name, for notes and errors.

    Returns:
        `(values, notes)`. Binary: auc, gauc, logloss (nats), ne, calibration, ece, rows, positives,
        oracle_auc, oracle_logloss. Regression: rmse, mae (in units of the label), rows.

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
    rows = observed_rows(
        kind,
        labels,
        predictions,
        observed,
        weights=weights,
        groups=groups,
        oracle=oracle,
        name=name,
    )
    if kind == "regression":
        return _regression(rows, name)
    return _binary(rows, name)


def monitor_value(metrics: Mapping[str, Mapping[str, Any]], monitor: str) -> float | None:
    """The number that decides which checkpoint is kept.

    Args:
        metrics: Task → its metrics, as `task_metrics(...).values`.
        monitor: `TASK.METRIC`, or `mean.METRIC`: the mean over the tasks that have a value.

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
    return float(np.mean(known)) if known else None


def higher_is_better(monitor: str) -> bool:
    """The direction of a monitor: True for auc, False for logloss, ne, rmse and mae.

    Raises:
        ValueError: The metric cannot be monitored.

    Example:
        >>> higher_is_better("mean.auc"), higher_is_better("click.logloss")
        (True, False)
    """
    metric = monitor.rpartition(".")[2]
    if metric not in _HIGHER_IS_BETTER:
        known = ", ".join(_HIGHER_IS_BETTER)
        raise ValueError(f"monitor {monitor!r}: unknown metric {metric!r}; expected one of {known}")
    return _HIGHER_IS_BETTER[metric]


def _binary(rows: ObservedRows, name: str) -> TaskMetrics:
    y, p, w = rows.labels, rows.predictions, rows.weights
    positives = int(y.sum())
    values: dict[str, Value] = dict.fromkeys(
        ("auc", "gauc", "logloss", "ne", "calibration", "ece"), None
    )
    values |= {
        "rows": len(rows),
        "positives": positives,
        "oracle_auc": None,
        "oracle_logloss": None,
    }
    reason = _empty_reason(rows)
    if reason is not None:
        return TaskMetrics(values, [f"{name}: no metric computed: {reason}"])
    values |= {
        "auc": auc(y, p, w),
        "logloss": log_loss(y, p, w),
        "ne": normalised_entropy(y, p, w),
        "calibration": calibration_ratio(y, p, w),
        "ece": expected_calibration_error(y, p, w),
    }
    if rows.oracle is not None:
        values["oracle_auc"] = auc(y, rows.oracle, w)
        values["oracle_logloss"] = log_loss(y, rows.oracle, w)
    notes = _one_class_notes(rows, values, name)
    if rows.groups is not None:
        grouped = grouped_auc(y, p, rows.groups, w)
        values["gauc"] = grouped.value
        notes.append(_group_note(grouped, len(rows), name))
    return TaskMetrics(values, notes)


def _regression(rows: ObservedRows, name: str) -> TaskMetrics:
    values: dict[str, Value] = {"rmse": None, "mae": None, "rows": len(rows)}
    reason = _empty_reason(rows)
    if reason is not None:
        return TaskMetrics(values, [f"{name}: no metric computed: {reason}"])
    errors = rows.predictions - rows.labels
    values["rmse"] = float(np.sqrt(np.average(errors**2, weights=rows.weights)))
    values["mae"] = float(np.average(np.abs(errors), weights=rows.weights))
    return TaskMetrics(values, [])


def _empty_reason(rows: ObservedRows) -> str | None:
    if len(rows) == 0:
        return "the label is observed in no row"
    if rows.weights is not None and rows.weights.sum() == 0:
        return f"all {len(rows)} observed rows have weight 0"
    return None


def _one_class_notes(rows: ObservedRows, values: dict[str, Value], name: str) -> list[str]:
    empty = [key for key in ("auc", "ne", "calibration") if values[key] is None]
    if not empty:
        return []
    weighted = rows.labels if rows.weights is None else rows.labels[rows.weights > 0]
    side = "positive" if weighted.any() else "negative"
    return [
        f"{name}: {', '.join(empty)} not computed: all {len(weighted)} observed rows are {side}"
    ]


def _group_note(grouped: GroupedAuc, rows: int, name: str) -> str:
    if grouped.value is None:
        return f"{name}: gauc not computed: none of {grouped.all_groups:,} groups has both classes"
    return (
        f"{name}: gauc rests on {grouped.groups:,} of {grouped.all_groups:,} groups "
        f"({grouped.rows:,} of {rows:,} rows); the others have one class only"
    )
