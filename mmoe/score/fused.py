"""Columns computed of predictions, such as `click^0.7 * purchase`: what a list is sorted by."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from mmoe.datasets.labels.expressions import evaluate
from mmoe.datasets.labels.formula import columns_of
from mmoe.datasets.rows.locations import missing_column

# A caret that stands in no name or text
_POWER = re.compile(r"(`[^`]*`|'[^']*'|\"[^\"]*\")|\^")


def fused_column(name: str, expression: str, predictions: pa.Table, origin: str) -> pa.Array:
    """Computes one column, float64; null where an operand is, and where no finite number comes.

    Args:
        name: Of the column, for messages.
        expression: As in a label; `^` is a power, as `**` is.
        predictions: Columns that it may name.
        origin: Starts error messages.

    Raises:
        ValueError: It is no expression, or gives text.

    Example:
        >>> predictions = pa.table({"click": [0.25, 0.5], "purchase": [0.5, 0.0]})
        >>> fused_column("value", "click^0.5 * purchase", predictions, "log").to_pylist()
        [0.25, 0.0]
    """
    used_by = f"fused column {name!r}"
    values = evaluate(_as_label(expression), predictions, origin, used_by)
    if values.is_text:
        raise ValueError(f"{origin}: {used_by}, {expression!r}: gives text; write numbers")
    numbers_N = values.data.astype("float64")
    return pa.array(numbers_N, mask=values.missing | ~np.isfinite(numbers_N))


def inputs_of(
    fused: Mapping[str, str], predicted: Sequence[str], columns: Sequence[str], origin: str
) -> dict[str, str]:
    """Finds the columns of the input that fused columns read, each with what needs it.

    Args:
        fused: Expressions by name.
        predicted: What they may name without the input: tasks, and what these predict further.
        columns: Of the input.
        origin: Starts error messages.

    Raises:
        ValueError: An expression cannot be parsed, or names neither a task nor a column.

    Example:
        >>> inputs_of({"value": "click * price"}, ["click"], ["price", "age"], "log")
        {'price': "fused column 'value'"}
    """
    needed: dict[str, str] = {}
    for name, expression in fused.items():
        try:
            named = columns_of(_as_label(expression))
        except ValueError as error:
            raise ValueError(f"fused column {name!r}: {error}") from None
        for column in named:
            if column in predicted:
                continue
            if column not in columns:
                known = dict.fromkeys([*predicted, *columns])
                raise ValueError(missing_column(column, known, origin, f"fused column {name!r}"))
            needed.setdefault(column, f"fused column {name!r}")
    return needed


def _as_label(expression: str) -> str:
    """With Python's sign of a power, which binds as it does on paper."""
    return _POWER.sub(lambda match: match.group(1) or "**", expression)
