"""Columns of results tables: a number of metrics.json, its heading, and how it is written."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

NONE = "–"  # stands where there is no number
# Ends the names of metrics of predictions for the display as it was logged (`model.bias`)
WITH_BIAS = "_with_bias"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of the report's tables and of those in a terminal.

    Attributes:
        key: Of metrics.json.
        heading: In the report.
        meaning: What the number says, in a sentence.
        form: How a number is written in the report.
        written: How a task's values are written there; None: the number under `key`, in `form`.
        title: In a terminal, where room is scarce; "": the column does not stand there.
        cell: How a task's values are written in a terminal; None: the number under `key`.
        every_day: It also stands in the table of a backtest's many days.
        optional: Some data has it: it stands only where a task has it.
        is_count: A number of rows; these stand behind all metrics.
    """

    key: str
    heading: str
    meaning: str
    form: str = "{:.4f}"
    written: Callable[[Mapping[str, Any]], str] | None = None
    title: str = ""
    cell: Callable[[Mapping[str, Any]], str] | None = None
    every_day: bool = True
    optional: bool = False
    is_count: bool = False

    def text(self, values: Mapping[str, Any]) -> str:
        """Returns the cell of a task with these metrics."""
        if self.written is not None:
            return self.written(values)
        value = values.get(self.key)
        return self.form.format(value) if is_number(value) else NONE


def with_bias(column: Column) -> Column:
    """Makes the column of the same metric with the logged display, where a model has a bias."""
    return Column(
        key=column.key + WITH_BIAS,
        heading=f"{column.heading} with bias",
        meaning=f"{column.heading} of predictions with the logit of model.bias for the display "
        "(position) as it was logged; the others are of scores",
        form=column.form,
        every_day=False,
        optional=True,
    )


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a value is finite; None and NaN could not be computed."""
    return isinstance(value, int | float) and math.isfinite(value)


def count(value: Any) -> str:
    """Writes a whole number with thin spaces between thousands."""
    return f"{int(value):,}".replace(",", "\u202f") if is_number(value) else NONE


def signed(value: float, form: str) -> str:
    """Writes a difference, with its sign.

    Example:
        >>> signed(-0.00312, "{:.4f}"), signed(0.00001, "{:.4f}"), signed(12.0, "{:.4g}")
        ('−0.0031', '+0.0000', '+12')
    """
    return ("−" if value < 0 else "+") + form.format(abs(value))


def finer(form: str) -> str:
    """Returns how changes are written: of numbers around 1, to the fifth place."""
    return "{:.5f}" if form == "{:.4f}" else form


def interval_cells(change: Mapping[str, Any] | None, form: str) -> list[str]:
    """Writes a difference, and the interval that it lies in.

    Args:
        change: Its `value`, `low` and `high`; None: nothing is compared.
        form: How a number is written.

    Example:
        >>> interval_cells({"value": 0.5, "low": 0.0, "high": 1.0}, "{:.1f}")
        ['+0.5', '+0.0 to +1.0']
    """
    if change is None or change["value"] is None:
        return ["" if change is None else NONE, ""]
    value = signed(change["value"], form)
    if change.get("low") is None:
        return [value, ""]
    return [value, f"{signed(change['low'], form)} to {signed(change['high'], form)}"]


def judged_cells(found: Mapping[str, Any], form: str) -> list[str]:
    """Writes what a model of a comparison reached: four cells.

    They are its mean and deviation over the seeds, its difference to the first model with the
    interval, and what that comes to.

    Args:
        found: An entry of `results` in compare.json.
        form: How a number is written.
    """
    mean, sd, difference = (found.get(key) for key in ("mean", "sd", "difference"))
    value = NONE if mean is None else form.format(mean)
    spread = "" if sd is None else f" ± {form.format(sd)}"
    verdict = None if difference is None else found.get("verdict")
    told = "" if verdict in (None, "even") else verdict
    return [value + spread, *interval_cells(difference, form), told]


ROWS = Column(
    key="rows",
    heading="rows",
    meaning="test rows where the label is observed",
    written=lambda values: count(values.get("rows")),
    title="rows",
    is_count=True,
)

MASKED = Column(
    key="masked",
    heading="masked",
    meaning="rows whose label counts nowhere, as they are younger than the task's matures_after",
    written=lambda values: count(values.get("masked")),
    title="masked",
    optional=True,
    is_count=True,
)

# Of any kind of task: of labels that mature, and metrics that a task's config may name
NAMED_COLUMNS: dict[str, Column] = {MASKED.key: MASKED}
