"""List-valued columns as flat values and offsets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import ListFeature, SequenceFeature
from mmoe.datasets.features.id_map import MISSING
from mmoe.datasets.rows.locations import find_column, place
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.missing_words import without_words
from mmoe.datasets.values.plain import (
    is_list,
    is_text,
    list_lengths,
    offsets_of,
    one_chunk,
    plain,
)
from mmoe.datasets.values.written_lists import parse_lists

_SHOWN = 80  # characters of a cell in an error


@dataclass(frozen=True)
class Ragged:
    """Lists of rows: row n holds `values[offsets[n]:offsets[n + 1]]`, maybe with weights.

    Attributes:
        values: Their items.
        offsets: int64 [N + 1].
        weights: Of the items, float32 [V].
        written: The weights as the rows say them, before they are shares, float64 [V].
    """

    values: pa.ChunkedArray
    offsets: np.ndarray
    weights: np.ndarray | None = None
    written: np.ndarray | None = None


def lists_of(
    table: pa.Table, name: str, feature: ListFeature | SequenceFeature, origin: str
) -> pa.ChunkedArray:
    """Returns a column of lists, or of text with separators: lists in text are parsed."""
    used_by = f"feature {feature.name!r}"
    column = find_column(table, name, origin, used_by)
    _refuse_deeper(column, name, used_by, origin)
    if feature.format != "json" or not is_text(column.type):
        return column
    lists, wrong = parse_lists(column)
    wrong_N = wrong.to_numpy()
    if wrong_N.any():
        index = int(wrong_N.argmax())
        cell = column[index].as_py()
        raise ValueError(
            f"{place(table, origin, index)}: column {name!r} (of {used_by}) is "
            f"{cell if len(cell) <= _SHOWN else cell[:_SHOWN] + '…'!r}, expected a list of plain "
            """values such as ["a", "b"] or [1, 2], as the feature has format: json; mend the """
            "cell, or leave it empty"
        )
    return lists


def _refuse_deeper(column: pa.ChunkedArray, name: str, used_by: str, origin: str) -> None:
    """Lists of lists, of structs, and the like."""
    kind = column.type
    nested = pa.types.is_nested(kind.value_type if is_list(kind) else kind)
    if nested:
        raise ValueError(
            f"{origin}: column {name!r} (of {used_by}) holds {kind}, expected one list of plain "
            "values a row; flatten it"
        )


def items_of(column: pa.ChunkedArray, separator: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Returns items and how many each row has: one where the column has no lists; "" has none."""
    if is_text(column.type):
        column = text.empty_to_null(pc.utf8_trim_whitespace(column))
    if is_text(column.type) or is_list(column.type):
        return split_lists(column, separator)
    present = pc.is_null(column, nan_is_null=True).to_numpy()
    column = column.filter(pa.array(~present))
    return column, (~present).astype(np.int64)


def split_lists(column: pa.ChunkedArray, separator: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Returns all items of a column of lists, and how many each row has."""
    if is_list(column.type):
        lists = one_chunk(column)
    else:
        lists = one_chunk(pc.split_pattern(column, separator))
    return plain(pa.chunked_array([lists.flatten()])), list_lengths(lists)


def blank_items(values: pa.ChunkedArray, words: Sequence[str] | None = None) -> pa.ChunkedArray:
    """Trims items of text; null where they are empty, NaN, or one of the words if there are any."""
    if is_text(values.type):
        return without_words(values, words or ())
    if pa.types.is_floating(values.type):
        is_nan = pc.is_nan(values)
        if pc.any(is_nan, min_count=0).as_py():
            return pc.if_else(is_nan, pa.scalar(None, values.type), values)
    return values


def ids_with_missing(ids_V: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gives every empty list the one id 0, the row of missing values."""
    filled_V = fill_empty(ids_V, offsets, MISSING)
    if filled_V is ids_V:
        return ids_V, offsets
    return filled_V, offsets_of(np.maximum(np.diff(offsets), 1))


def fill_empty(items_V: np.ndarray, offsets: np.ndarray, item: float) -> np.ndarray:
    """Gives every empty list one `item`."""
    empty = np.flatnonzero(np.diff(offsets) == 0)
    return np.insert(items_V, offsets[:-1][empty], item) if len(empty) else items_V


def kept_items(
    values: pa.ChunkedArray, lengths_N: np.ndarray, feature: ListFeature
) -> tuple[np.ndarray | None, np.ndarray]:
    """Returns which items stay (no nulls, none beyond max_length), None: all; and how many."""
    most = feature.max_length
    if not values.null_count and (most is None or not (lengths_N > most).any()):
        return None, lengths_N
    keep_V = pc.is_valid(values).to_numpy()
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    # max_length counts items that are there: nulls go first
    kept_N = np.bincount(row_V[keep_V], minlength=len(lengths_N))
    if most is not None:
        before_N = np.cumsum(kept_N) - kept_N
        position_V = np.cumsum(keep_V) - 1 - before_N[row_V]
        if feature.keep == "first":
            keep_V &= position_V < most
        else:
            keep_V &= position_V >= (kept_N - most)[row_V]
        kept_N = np.minimum(kept_N, most)
    return keep_V, kept_N


def shortened(ragged: Ragged, most: float, keep: str) -> tuple[Ragged, np.ndarray]:
    """Returns lists with at most so many items, the first or the last, and which had more."""
    lengths_N = np.diff(ragged.offsets)
    longer_N = lengths_N > most
    if not longer_N.any():
        return ragged, longer_N
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    place_V = np.arange(len(row_V)) - ragged.offsets[:-1][row_V]
    first_N = lengths_N - int(most) if keep == "last" else np.zeros_like(lengths_N)
    keep_V = (place_V >= first_N[row_V]) & (place_V < (first_N + int(most))[row_V])
    keep_V |= ~longer_N[row_V]
    parts = (None if part is None else part[keep_V] for part in (ragged.weights, ragged.written))
    values = ragged.values.filter(pa.array(keep_V))
    return Ragged(values, offsets_of(np.minimum(lengths_N, int(most))), *parts), longer_N


class RaggedRows:
    """Where the items of given rows' lists are; padding rows have one item each.

    Attributes:
        lengths_B: int32 [height].
    """

    def __init__(self, offsets: np.ndarray, rows_B: np.ndarray, height: int) -> None:
        starts_B = offsets[rows_B]
        lengths_B = offsets[rows_B + 1] - starts_B
        ends_B = np.cumsum(lengths_B)
        self.total = int(ends_B[-1]) if len(ends_B) else 0
        self.padding = height - len(rows_B)
        self.index = np.repeat(starts_B - (ends_B - lengths_B), lengths_B) + np.arange(self.total)
        self.lengths_B = np.ones(height, np.int32)
        self.lengths_B[: len(rows_B)] = lengths_B

    def ids(self, values_V: np.ndarray) -> np.ndarray:
        """Returns the rows' ids, int64; padding is missing."""
        return self._filled(values_V, MISSING, np.int64)

    def weights(self, weights_V: np.ndarray | None) -> np.ndarray:
        """Returns the rows' weights, float32; 1 where there are none, and in padding."""
        if weights_V is None:
            return np.ones(self.total + self.padding, np.float32)
        return self._filled(weights_V, 1, np.float32)

    def _filled(self, items_V: np.ndarray, item: int, dtype: type) -> np.ndarray:
        out = np.full(self.total + self.padding, item, dtype)
        out[: self.total] = items_V[self.index]
        return out
