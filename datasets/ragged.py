"""List-valued columns: flat values and offsets."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import ListFeature
from mmoe.datasets import text
from mmoe.datasets.arrow import pc
from mmoe.datasets.rows import is_list, is_text, plain


@dataclass(frozen=True)
class Ragged:
    """Row n holds `values[offsets[n]:offsets[n + 1]]`."""

    values: pa.ChunkedArray
    offsets: np.ndarray  # int64 [N + 1]


def to_ragged(column: pa.ChunkedArray, feature: ListFeature, *, settle: bool = False) -> Ragged:
    """The lists of a column: an Arrow list, text with separators, or one id a row.

    Nulls and empty text inside a list are dropped; then at most `feature.max_length` ids are kept,
    the first ones.

    Args:
        column: N rows.
        feature: separator and max_length.
        settle: Give ids cut out of text the type they look like (when fitting).
    """
    if is_list(column.type):
        lists = _joined(column.cast(pa.large_list(column.type.value_type)))
    elif is_text(column.type):
        lists = _joined(pc.split_pattern(column, feature.separator))
        lists = lists.cast(pa.large_list(pa.large_string()))
    else:
        return _single(column)
    lengths_N = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    values = plain(pa.chunked_array([lists.flatten()]))
    if is_text(values.type):
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    values, lengths_N = _keep(values, lengths_N, feature.max_length)
    if settle and is_text(column.type):
        values = text.settle(values)
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64))


def ids_with_missing(ids_V: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gives every empty list the one id 0, the row of missing values."""
    lengths_N = np.diff(offsets)
    empty = np.flatnonzero(lengths_N == 0)
    if len(empty) == 0:
        return ids_V, offsets
    filled = np.insert(ids_V, offsets[:-1][empty], 0)
    lengths_N[empty] = 1
    return filled, np.concatenate([[0], np.cumsum(lengths_N)])


def _joined(column: pa.ChunkedArray) -> pa.Array:
    """One array; that of a column in one chunk is not copied (`combine_chunks` would)."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _keep(
    values: pa.ChunkedArray, lengths_N: np.ndarray, max_length: int | None
) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Drops nulls, then what is beyond max_length."""
    if not values.null_count and (max_length is None or not (lengths_N > max_length).any()):
        return values, lengths_N
    keep_V = pc.is_valid(values).to_numpy()
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    kept_N = np.bincount(row_V[keep_V], minlength=len(lengths_N))
    if max_length is not None:
        before_N = np.cumsum(kept_N) - kept_N
        position_V = np.cumsum(keep_V) - 1 - before_N[row_V]
        keep_V &= position_V < max_length
        kept_N = np.minimum(kept_N, max_length)
    return values.filter(pa.array(keep_V)), kept_N


def _single(column: pa.ChunkedArray) -> Ragged:
    """Numbers instead of lists: lists of one."""
    present_N = pc.is_valid(column).to_numpy()
    return Ragged(column.drop_null(), np.concatenate([[0], np.cumsum(present_N)]))
