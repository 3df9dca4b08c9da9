"""Metrics of predictions, in NumPy alone: AUC and its kin, calibration, curves, intervals."""

from mmoe.metrics.auc import auc, average_precision
from mmoe.metrics.columns import Column
from mmoe.metrics.differences import (
    GAIN_HEADINGS,
    Difference,
    gain_over_wide,
    gain_rows,
    paired_difference,
)
from mmoe.metrics.intervals import AucDifference, AucInterval, auc_difference_interval, auc_interval
from mmoe.metrics.named import NamedMetric
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.of_tasks import higher_is_better, monitor_value, task_curves, task_metrics
from mmoe.metrics.task_kinds import KINDS, first_of, kind_of, kind_of_metrics
from mmoe.metrics.task_kinds.base import LabelColumn, TaskKind, TaskMetrics

__all__ = [
    "GAIN_HEADINGS",
    "KINDS",
    "AucDifference",
    "AucInterval",
    "Column",
    "Difference",
    "LabelColumn",
    "NamedMetric",
    "ObservedRows",
    "TaskKind",
    "TaskMetrics",
    "auc",
    "auc_difference_interval",
    "auc_interval",
    "average_precision",
    "first_of",
    "gain_over_wide",
    "gain_rows",
    "higher_is_better",
    "kind_of",
    "kind_of_metrics",
    "monitor_value",
    "paired_difference",
    "task_curves",
    "task_metrics",
]
