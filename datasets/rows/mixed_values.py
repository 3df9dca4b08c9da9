"""Columns in which numbers and texts stand side by side, as object columns of pandas may hold."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

_EXACT = 2.0**53  # whole floats below are written as integers, as ids of floats are


def texts_of_mixed(values: Any) -> pa.Array | None:
    """Returns numbers, flags and texts as texts; None where a value is no scalar, or none is text.

    A number is written as the id that it would be (5 and 5.0 are "5"), so that it is the same one
    where a later table has the column as numbers. None and NaN are missing.

    Example:
        >>> texts_of_mixed([5, "a", 5.0, None, True]).to_pylist()
        ['5', 'a', '5', None, 'True']
        >>> texts_of_mixed([1, [2]]) is None
        True
    """
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        return None
    texts: list[str | None] = []
    found = False
    for value in values:
        found = found or isinstance(value, str)
        text = _text(value)
        if text is None and not _is_missing(value):
            return None
        texts.append(text)
    return pa.array(texts, pa.large_string()) if found else None


def said_of_mixed(columns: Sequence[str]) -> str:
    """Returns the warning about columns that were read as text."""
    listed = ", ".join(map(repr, columns))
    return (
        f"numbers and texts stand side by side in {listed}, so all values of it are read as text; "
        "make it one type if they are numbers (pandas.to_numeric)"
    )


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return str(value)
    if isinstance(value, float | np.floating | Decimal) and value == value:
        whole = abs(value) < _EXACT and value == int(value)
        return str(int(value)) if whole else str(value)
    return None


def _is_missing(value: Any) -> bool:
    """Asked of what has no text: None, NaN, pandas' NA and NaT."""
    if value is None or type(value).__name__ == "NAType":
        return True
    return isinstance(value, float | np.floating) or type(value).__name__ == "NaTType"
