"""Metrics that a task's config names, beside those that its kind always has.

One of somebody's own is a `NamedMetric`, tied to its config class by `mmoe.register.metric`. What a
kind always has is in `mmoe.metrics.task_kinds`, each metric in a file beside this one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from mmoe.metrics.columns import Column
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.task_kinds.base import TaskMetrics, empty_reason


class NamedMetric(ABC):
    """A number that judges the predictions of one task.

    Attributes:
        higher_is_better: Where it chooses the best checkpoint.
        of_events: Labels have to be 0 or 1, predictions the probability of 1.
        needs_groups: Rows have to have groups (`data.group_column`).
        column: How tables show it; `key` is its name.

    Args:
        config: What the task's config says of it, a section of its own class.
    """

    higher_is_better: ClassVar[bool]
    of_events: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    column: ClassVar[Column]

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def value(self, rows: ObservedRows) -> float | None:
        """Computes it over one row or more, whose weights are not all 0; None: it has none."""

    def judged(self, rows: ObservedRows) -> tuple[float | None, str | None]:
        """Returns its value, and what there is to say of it, such as what it rests on."""
        return self.value(rows), None


def with_named(
    found: TaskMetrics, rows: ObservedRows, metrics: Sequence[NamedMetric], name: str
) -> TaskMetrics:
    """Adds the values of named metrics to those of the kind of the task `name`."""
    values, notes = dict(found.values), list(found.notes)
    empty = empty_reason(rows) is not None  # the kind has said so
    for metric in metrics:
        value, note = (None, None) if empty else metric.judged(rows)
        finite = value is not None and math.isfinite(value)
        values[metric.column.key] = float(value) if finite and value is not None else None
        if not empty and not finite and note is None:
            note = f"{metric.column.key} not computed: it is {value}"
        notes += [] if note is None else [f"{name}: {note}"]
    return TaskMetrics(values, notes)
