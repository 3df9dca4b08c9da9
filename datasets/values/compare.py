"""Values that are the same: numbers, texts and lists of them, missing ones too."""

import numpy as np
import pyarrow as pa

from mmoe.datasets.values.arrow import is_list, pc


def same_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Compares two columns of one type, bool [N]: missing ones are the same, lists by their items.

    Example:
        >>> lists = pa.chunked_array([pa.array([[1, None], None, [2]])])
        >>> same_values(lists, pa.chunked_array([pa.array([[1, None], [], [3]])]))
        array([ True, False, False])
    """
    kind = left.type
    if pa.types.is_null(kind):
        return np.ones(len(left), bool)
    missing = pc.and_(pc.is_null(left), pc.is_null(right))
    if is_list(kind):
        return _same_lists(left, right) | missing.to_numpy(zero_copy_only=False)
    if pa.types.is_struct(kind):
        alike = pc.equal(pc.is_null(left), pc.is_null(right)).to_numpy(zero_copy_only=False)
        for number in range(kind.num_fields):
            parts = (pc.struct_field(column, [number]) for column in (left, right))
            alike &= same_values(*parts)
        return alike
    equal = pc.fill_null(pc.equal(left, right), False)
    if pa.types.is_floating(kind):
        both_nan = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(equal, pc.fill_null(both_nan, False))
    return pc.or_(equal, missing).to_numpy(zero_copy_only=False)


def _same_lists(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Of rows whose lists are both there."""
    lengths = [pc.list_value_length(column) for column in (left, right)]
    alike = pc.fill_null(pc.equal(*lengths), False).to_numpy(zero_copy_only=False).copy()
    rows = pa.array(np.flatnonzero(alike))
    items = [pc.list_flatten(column.take(rows)) for column in (left, right)]
    if len(items[0]):
        owners_V = np.repeat(np.flatnonzero(alike), lengths[0].take(rows).to_numpy())
        alike[owners_V[~same_values(*items)]] = False
    return alike


def same_neighbours(array: pa.Array) -> np.ndarray:
    """Compares each value of a column with the one before, bool [N − 1].

    Example:
        >>> same_neighbours(pa.array([[1, 2], [1, 2], [1], None, None]))
        array([ True, False, False,  True])
    """
    if len(array) < 2:
        return np.zeros(0, bool)
    if not pa.types.is_list(array.type) and not pa.types.is_large_list(array.type):
        left, right = array.slice(1), array.slice(0, len(array) - 1)
        return same_values(pa.chunked_array([left]), pa.chunked_array([right]))
    offsets = array.offsets.to_numpy()
    lengths_N, valid_N = np.diff(offsets), array.is_valid().to_numpy(zero_copy_only=False)
    both = valid_N[1:] & valid_N[:-1] & (lengths_N[1:] == lengths_N[:-1])
    # Of lists of one length the items before are those of the list before
    compared_N = np.concatenate([[False], both])
    length_V = np.repeat(lengths_N, np.where(compared_N, lengths_N, 0))
    starts_N = np.where(compared_N, offsets[:-1], 0)
    item_V = _ranges(starts_N, np.where(compared_N, lengths_N, 0))
    wrong_V = ~_same_items(array.values, item_V, item_V - length_V)
    if wrong_V.any():
        owner_V = np.repeat(np.arange(len(array)), np.where(compared_N, lengths_N, 0))
        both[owner_V[wrong_V] - 1] = False
    return both | ~(valid_N[1:] | valid_N[:-1])


def _ranges(starts_N: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
    """Numbers from each start on, so many of each."""
    ends_N = np.cumsum(lengths_N)
    shift_N = starts_N - (ends_N - lengths_N)
    return np.repeat(shift_N, lengths_N) + np.arange(int(ends_N[-1]))


def _same_items(items: pa.Array, left_V: np.ndarray, right_V: np.ndarray) -> np.ndarray:
    """Compares items by their places; numbers that are all there without Arrow's detours."""
    if pa.types.is_integer(items.type) and not items.null_count:
        numbers = items.to_numpy()
        return numbers[left_V] == numbers[right_V]
    parts = (pa.chunked_array([items.take(pa.array(place_V))]) for place_V in (left_V, right_V))
    return same_values(*parts)
