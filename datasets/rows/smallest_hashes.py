"""The n-th smallest of the hashes of all row numbers, in bounded memory."""

from collections.abc import Sequence

import numpy as np

from mmoe.datasets.values.hashing import mix64

_ROWS = 1 << 17  # hashed at a time
_SHIFT = np.uint64(48)  # the top 16 bits choose one of 65,536 bins


def smallest_hashes(num_rows: int, seed: int, ranks: Sequence[int]) -> list[int]:
    """For each rank the hash below which just so many of `mix64(0 … num_rows − 1)` lie.

    Two passes over the row numbers: bins of equal width are counted, then the hashes of the bins
    that hold an answer are sorted (num_rows / 65,536 of them on average).

    Args:
        num_rows: N.
        seed: Of `mix64`, which has no equal hashes.
        ranks: Below N.

    Example:
        >>> hashes = mix64(np.arange(100, dtype=np.uint64), 7)
        >>> [int((hashes < np.uint64(h)).sum()) for h in smallest_hashes(100, 7, [0, 30, 99])]
        [0, 30, 99]
    """
    if not num_rows:
        return [0 for _ in ranks]
    counts = np.zeros(1 << 16, np.int64)
    for hashes in _hashes(num_rows, seed):
        counts += np.bincount((hashes >> _SHIFT).astype(np.int64), minlength=1 << 16)
    ends = np.cumsum(counts)
    bins = [int(np.searchsorted(ends, rank, side="right")) for rank in ranks]
    members: dict[int, list[np.ndarray]] = {number: [] for number in bins}
    for hashes in _hashes(num_rows, seed):
        of_bin = (hashes >> _SHIFT).astype(np.int64)
        for number, found in members.items():
            found.append(hashes[of_bin == number])
    result = []
    for rank, number in zip(ranks, bins, strict=True):
        ordered = np.sort(np.concatenate(members[number]))
        result.append(int(ordered[rank - (ends[number] - counts[number])]))
    return result


def _hashes(num_rows: int, seed: int):
    for start in range(0, num_rows, _ROWS):
        yield mix64(np.arange(start, min(start + _ROWS, num_rows), dtype=np.uint64), seed)
