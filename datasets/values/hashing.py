"""64-bit hashes that are the same on every machine and in every version of every library.

Arrow has none, and those of pandas would give every id of an older run another row.
"""

import numpy as np
import pyarrow as pa

from mmoe.datasets.values.arrow import is_text, pc

# Constants of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_HASHED = 2**62  # raw ids from here on are hashes


def mix64(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Mixes 64 bits: SplitMix64's finalizer of `value + (seed + 1) · golden`, a bijection.

    Args:
        values: uint64 [N] (other integers are taken by their bits).
        seed: Another seed, another bijection.

    Returns:
        uint64 [N].

    Example:
        >>> mix64(np.array([0, 1, 2], np.uint64)).tolist()
        [16294208416658607535, 10451216379200822465, 10905525725756348110]

    Source: Steele, Lea and Flood, OOPSLA 2014, figure 17 (mix64variant13).
    """
    increment = np.uint64((int(_GOLDEN) * (seed + 1)) % 2**64)
    # astype copies, so the steps below may work in place.
    z = np.asarray(values).astype(np.uint64)
    z += increment
    z ^= z >> np.uint64(30)
    z *= _FIRST
    z ^= z >> np.uint64(27)
    z *= _SECOND
    z ^= z >> np.uint64(31)
    return z


def hash_text(values: pa.Array) -> np.ndarray:
    """Hashes strings byte by byte: mix64(length + Σ mix64(256·position + byte)), modulo 2⁶⁴.

    A sum of one random number for each (position, byte) is simple tabulation hashing: any two
    strings that differ collide with probability 2⁻⁶⁴, and it needs no loop over rows.

    Args:
        values: String array without offsets tricks of its own (slices are fine); nulls hash as "".

    Returns:
        uint64 [N].

    Example:
        >>> hash_text(pa.array(["a", "b", ""])) == hash_text(pa.array(["a", "c", ""]))
        array([ True, False,  True])

    Source: Pătraşcu and Thorup, "The power of simple tabulation hashing", JACM 2012.
    """
    values = pc.fill_null(values.cast(pa.large_string()), "")
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    length = len(values)
    if length == 0:
        return np.zeros(0, np.uint64)
    _, offsets_buffer, data_buffer = values.buffers()
    start = values.offset
    offsets = np.frombuffer(offsets_buffer, np.int64)[start : start + length + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    lengths = np.diff(offsets)
    position = np.arange(len(data), dtype=np.uint64)
    position -= np.repeat(offsets[:-1], lengths).astype(np.uint64)
    parts = mix64(position * np.uint64(256) + data)
    # Prefix sums wrap modulo 2⁶⁴, and so do their differences: exact, and right for empty strings.
    prefix = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(parts, out=prefix[1:])
    sums = prefix[offsets[1:]] - prefix[offsets[:-1]]
    return mix64(sums + lengths.astype(np.uint64))


def hash_one(text: str) -> np.uint64:
    """Hashes one string as `hash_text` does.

    Example:
        >>> hash_one("Zürich") == hash_text(pa.array(["Zürich"]))[0]
        np.True_
    """
    data = np.frombuffer(text.encode(), np.uint8)
    parts = mix64(np.arange(len(data), dtype=np.uint64) * np.uint64(256) + data)
    return mix64(parts.sum(keepdims=True) + np.uint64(len(data)))[0]


def hash_keys(keys: pa.ChunkedArray) -> np.ndarray:
    """Hashes keys: uint64 [N], the same on every machine and in every version."""
    if is_text(keys.type):
        return hash_text(keys)
    if pa.types.is_floating(keys.type):
        return mix64(pc.fill_null(keys, 0.0).to_numpy().view(np.uint64))
    return mix64(pc.fill_null(keys, 0).to_numpy().view(np.uint64))


def hash_rows(keys: pa.ChunkedArray, size: int, first: int) -> np.ndarray:
    """Hashes ids to rows of a table: `first + hash mod size`, int32 [N]; nulls give any row.

    Args:
        keys: N keys of one kind.
        size: Rows that ids share.
        first: The lowest of them; those below are the caller's (missing, unseen).
    """
    rows_N = (hash_keys(keys) % np.uint64(size)).astype(np.int32)
    rows_N += first
    return rows_N


def raw_ids(keys: pa.ChunkedArray, first: int) -> np.ndarray:
    """Returns keys as int64 from `first` to 2⁶³ - 2, the same on every machine.

    Integers from 0 to 2⁶² - 1 are moved by `first` and never share an id; everything else is hashed
    behind them, 62 bits: among ten million texts any two share an id with probability 1 in 90,000.
    Nulls give any value.

    Args:
        keys: N keys of one kind.
        first: The lowest id; those below are the caller's (missing, unseen).

    Returns:
        int64 [N].
    """
    hashed_N = (hash_keys(keys) % np.uint64(_HASHED - 2 - first)).astype(np.int64) + first
    if is_text(keys.type) or pa.types.is_floating(keys.type):
        return hashed_N + _HASHED
    keys_N = pc.fill_null(keys, 0).to_numpy()
    return np.where((keys_N >= 0) & (keys_N < _HASHED), keys_N + first, hashed_N + _HASHED)
