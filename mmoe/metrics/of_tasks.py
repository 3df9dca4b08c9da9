"""Metrics of one task, on exactly the rows where its label is observed, in float64."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmoe.metrics.columns import WITH_BIAS
from mmoe.metrics.named import NamedMetric, with_named
from mmoe.metrics.task_kinds import HIGHER_IS_BETTER, KindName, TaskMetrics, kind_of
from mmoe.metrics.task_kinds.base import empty_reason, observed_rows


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
