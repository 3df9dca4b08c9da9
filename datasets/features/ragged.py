"""List-valued columns as flat values and offsets."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import ListFeature
from mmoe.datasets.features.id_map import MISSING
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.plain import (
    is_list,
    is_text,
    list_lengths,
    offsets_of,
    one_chunk,
    plain,
)


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


def to_ragged(column: pa.ChunkedArray, feature: ListFeature) -> Ragged:
    """Reads the lists of a column: an Arrow list, text with separators, or one id a row.

    Nulls, NaN and empty text inside a list are dropped; then at most `feature.max_length` ids are
    kept, the first or the last ones.

    Args:
        column: N rows.
        feature: separator, max_length and keep.
    """
    if not is_list(column.type) and not is_text(column.type):
        return _single(column)
    values, lengths_N = split_lists(column, feature.separator)
    values = blank_items(values)
    keep_V, lengths_N = kept_items(values, lengths_N, feature)
    values = values if keep_V is None else values.filter(pa.array(keep_V))
    return Ragged(values, offsets_of(lengths_N))


def split_lists(column: pa.ChunkedArray, separator: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Returns all items of a column of lists, and how many each row has."""
    if is_list(column.type):
        lists = one_chunk(column)
    else:
        lists = one_chunk(pc.split_pattern(column, separator))
    return plain(pa.chunked_array([lists.flatten()])), list_lengths(lists)


def blank_items(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Trims items of text; null where they are empty or NaN."""
    if is_text(values.type):
        values = pc.utf8_trim_whitespace(values)
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
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


def _single(column: pa.ChunkedArray) -> Ragged:
    """Numbers instead of lists: lists of one."""
    present_N = pc.is_valid(column).to_numpy()
    return Ragged(column.drop_null(), offsets_of(present_N))


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
