"""Hashes of whole rows: the same for the same values, in memory and streamed, in any version."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from mmoe.datasets.values.arrow import is_list, is_text, pc, plain
from mmoe.datasets.values.hashing import hash_text, mix64
from mmoe.datasets.values.keys import to_keys
from mmoe.datasets.values.text import blank_to_null, to_integers, to_reals

_ROWS = 1 << 16  # hashed at a time: of text each byte takes some
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
MISSING = np.uint64(0x2545F4914F6CDD1D)


def row_hashes(table: pa.Table, columns: Iterable[str]) -> np.ndarray:
    """Hashes rows by their values: uint64 [N], the same in whatever order columns are named.

    Example:
        >>> table = pa.table({"a": [1, 1, 2], "b": ["x", "x", "x"]})
        >>> hashes_N = row_hashes(table, ["b", "a"])
        >>> bool(hashes_N[0] == hashes_N[1]), bool(hashes_N[0] == hashes_N[2])
        (True, False)
    """
    total_N = np.zeros(table.num_rows, np.uint64)
    for place, name in enumerate(sorted(columns)):
        total_N += column_part(table[name], place)
    return total_N


def column_part(column: pa.ChunkedArray, place: int) -> np.ndarray:
    """Returns what a column adds to its rows' hashes, uint64 [N]; `place` is its number."""
    parts = [
        mix64(value_hashes(chunk.slice(start, _ROWS)), seed=place + 1)
        for chunk in plain(column).chunks
        for start in range(0, len(chunk), _ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def value_hashes(values: pa.Array) -> np.ndarray:
    """Returns numbers for values, uint64 [N]: equal ones have the same, in any type."""
    kind = values.type
    if is_list(kind):
        return _list_hashes(values)
    if pa.types.is_struct(kind):
        return sum(
            (mix64(value_hashes(part), seed=n + 1) for n, part in enumerate(values.flatten())),
            np.zeros(len(values), np.uint64),
        )
    if is_text(kind):
        coded = values.dictionary_encode()
        of_values = np.append(_text_hashes(coded.dictionary), MISSING)
        return of_values[pc.fill_null(coded.indices.cast(pa.int64()), -1).to_numpy()]
    missing_N = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    if pa.types.is_null(kind) or pa.types.is_map(kind) or pa.types.is_union(kind):
        found_N = np.zeros(len(values), np.uint64)
    elif pa.types.is_floating(kind):
        found_N = _real_hashes(pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy())
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        whole = values.cast(pa.int64(), safe=False)
        found_N = pc.fill_null(whole, 0).to_numpy(zero_copy_only=False).view(np.uint64)
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        narrow = kind.bit_width == 32
        whole = values.cast(pa.int32() if narrow else pa.int64())
        found_N = pc.fill_null(whole, 0).to_numpy().astype(np.int64).view(np.uint64)
    elif pa.types.is_interval(kind):
        found_N = np.zeros(len(values), np.uint64)
    else:  # decimals, bytes
        found_N = hash_text(to_keys(pa.chunked_array([values]), "text", "a row"))
    return np.where(missing_N, MISSING, found_N)


def _real_hashes(reals_N: np.ndarray) -> np.ndarray:
    """The bits of whole numbers as integers, as integers have them, of others their own."""
    with np.errstate(invalid="ignore"):
        whole_N = (reals_N == np.floor(reals_N)) & (np.abs(reals_N) < 2.0**53)
    integers_N = np.where(whole_N, reals_N, 0).astype(np.int64)
    return np.where(whole_N, integers_N.view(np.uint64), reals_N.view(np.uint64))


def _text_hashes(distinct: pa.Array) -> np.ndarray:
    """Numbers in text as numbers have them: test files of a split by file stay text."""
    column = blank_to_null(pa.chunked_array([distinct]))
    found_N = np.where(pc.is_null(column).to_numpy(), MISSING, hash_text(distinct))
    looks_N = pc.fill_null(pc.match_substring_regex(column, _NUMBER), False).to_numpy()
    if looks_N.any():
        written = column.filter(pa.array(looks_N))
        integers, reals = to_integers(written), to_reals(written)
        whole = pc.fill_null(integers, 0).to_numpy().view(np.uint64)
        other = _real_hashes(pc.fill_null(reals, 0.0).to_numpy())
        found_N[looks_N] = np.where(pc.is_null(integers).to_numpy(), other, whole)
    return found_N


def _list_hashes(values: pa.Array) -> np.ndarray:
    """Σ of items mixed with their places, and their number; a missing list is no empty one."""
    counts_N = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
    items_V = value_hashes(plain(pa.chunked_array([values.flatten()])).combine_chunks())
    ends_N = np.cumsum(counts_N)
    places_V = np.arange(len(items_V)) - np.repeat(ends_N - counts_N, counts_N)
    sums = np.zeros(len(items_V) + 1, np.uint64)
    mixed_V = mix64(mix64(items_V) + mix64(places_V.astype(np.uint64), seed=1))
    np.cumsum(mixed_V, out=sums[1:])
    found_N = sums[ends_N] - sums[ends_N - counts_N] + counts_N.astype(np.uint64)
    return np.where(values.is_null().to_numpy(zero_copy_only=False), MISSING, found_N)
