"""Columns of vectors as matrices, with errors that name file, row and value."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.locations import find_column, place
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_list, is_text, list_lengths, pc
from mmoe.datasets.values.columns import numbers_of

# Around the numbers of a vector in text: JSON, Python, NumPy, PostgreSQL
_BRACKETS = " \t\r\n[](){}"
_BETWEEN = r"[\s,;|]+"


class Vectors(NamedTuple):
    """Vectors of N rows, M of them present.

    Attributes:
        numbers_ML: float32 or float64, NaN where a number is missing; L is 0 where none is present.
        present_N: bool.
    """

    numbers_ML: np.ndarray
    present_N: np.ndarray


def to_vectors(
    table: pa.Table, name: str, origin: str, used_by: str, length: int | None = None
) -> Vectors:
    """Reads a column of vectors: lists of numbers, or text that holds such lists.

    An empty list is a missing vector, and so is one without a number.

    Args:
        table: N rows.
        name: The column.
        origin: Starts error messages.
        used_by: Who asks, such as "feature 'title'".
        length: How long they have to be; None: as long as the first.

    Raises:
        ValueError: The column is not there or holds no lists of numbers, lengths differ, or a
            number is infinite; names file and row.

    Example:
        >>> table = pa.table({"title": ["[0.5, 2]", "", "[1.5, -1e-3]"]})
        >>> vectors = to_vectors(table, "title", "log.csv", "feature 'title'")
        >>> vectors.numbers_ML.tolist(), vectors.present_N.tolist()
        ([[0.5, 2.0], [1.5, -0.001]], [True, False, True])
    """
    column = find_column(table, name, origin, used_by)
    what = f"column {name!r} (of {used_by})"
    if pa.types.is_null(column.type):
        return Vectors(np.zeros((0, length or 0), np.float32), np.zeros(len(column), bool))
    _check_type(column, f"{origin}: {what}")
    items, lengths_N = items_of(column)
    present_N = lengths_N > 0
    if not present_N.any():
        return Vectors(np.zeros((0, length or 0), np.float32), present_N)
    expected = length or int(lengths_N[present_N.argmax()])
    wrong_N = present_N & (lengths_N != expected)
    if wrong_N.any():
        row = int(wrong_N.argmax())
        raise ValueError(
            f"{place(table, origin, row)}: {what} holds {lengths_N[row]} numbers, expected "
            f"{expected} as in other rows; write all vectors with one length, or leave the cell "
            "empty"
        )
    numbers_V = reals_of(items)
    bad = _first_bad(items, numbers_V)
    if bad is not None:
        row = int(np.flatnonzero(present_N)[bad // expected])
        raise ValueError(
            f"{place(table, origin, row)}: {what} holds {items[bad].as_py()!r}, expected finite "
            "numbers; mend the cell, or leave it empty"
        )
    return _without_empty(numbers_V.reshape(-1, expected), present_N)


def items_of(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Returns all items of lists, or of text that holds them, and how many each row has.

    Example:
        >>> items, lengths_N = items_of(pa.chunked_array([["[1, 2]", None, "(3;4)"]]))
        >>> items.to_pylist(), lengths_N.tolist()
        (['1', '2', '3', '4'], [2, 0, 2])
    """
    lists = _split(column) if is_text(column.type) else column
    items = pc.list_flatten(lists)
    items = pc.utf8_trim_whitespace(items) if is_text(items.type) else items
    return items, list_lengths(lists)


def _check_type(column: pa.ChunkedArray, what: str) -> None:
    kind = column.type
    if not is_text(kind) and (not is_list(kind) or pa.types.is_nested(kind.value_type)):
        raise ValueError(
            f"{what} holds {kind}, expected lists of numbers, or text such as [0.1, 0.2]; give "
            "the feature another kind, or convert the column"
        )


def _split(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lists of text, null where there is none; brackets go, whatever is between numbers may be."""
    bare = pc.utf8_trim(text.blank_to_null(column), characters=_BRACKETS)
    bare = pc.if_else(pc.equal(bare, ""), pa.scalar(None, bare.type), bare)
    if not pc.all(pc.match_substring(bare, ","), min_count=0).as_py():
        bare = pc.replace_substring_regex(bare, _BETWEEN, ",")
    return pc.split_pattern(bare, ",")


def reals_of(items: pa.ChunkedArray) -> np.ndarray:
    """Returns items as floats [V], NaN where there is no number; float32 stays as narrow as it is.

    Example:
        >>> reals_of(pa.chunked_array([["0.5", "x"]])).tolist()
        [0.5, nan]
    """
    if items.type == pa.float32():
        return pc.fill_null(items, float("nan")).to_numpy()
    numbers_V = numbers_of(items)
    return np.full(len(items), np.nan) if numbers_V is None else numbers_V


def _first_bad(items: pa.ChunkedArray, numbers_V: np.ndarray) -> int | None:
    """The first that is infinite, or no number though it is there."""
    finite_V = np.isfinite(numbers_V)
    if finite_V.all():
        return None
    bad_V = np.isinf(numbers_V)
    if not pa.types.is_floating(items.type):
        there = text.blank_to_null(items) if is_text(items.type) else items
        bad_V |= np.isnan(numbers_V) & pc.is_valid(there).to_numpy()
    return int(bad_V.argmax()) if bad_V.any() else None


def _without_empty(numbers_ML: np.ndarray, present_N: np.ndarray) -> Vectors:
    """Vectors without a single number are missing."""
    if not np.isnan(numbers_ML).any():
        return Vectors(numbers_ML, present_N)
    empty_M = np.isnan(numbers_ML).all(axis=1)
    if not empty_M.any():
        return Vectors(numbers_ML, present_N)
    present_N = present_N.copy()
    present_N[np.flatnonzero(present_N)[empty_M]] = False
    return Vectors(numbers_ML[~empty_M], present_N)
