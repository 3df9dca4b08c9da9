"""Which rows come when: a function of seed, epoch and sizes alone, so training can go on anywhere.

The pieces (row groups) of a split are permuted and laid end to end; that sequence is cut into
windows of whole batches, and the rows of each window are permuted. Window w of an epoch needs the
pieces that overlap it and nothing of its past.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Added to (seed, epoch) they make generators of their own; zeros at the end would make none.
_PIECES, _WINDOW = 1, 2


@dataclass(frozen=True)
class Window:
    """Rows [start, stop) of the epoch's sequence: `pieces` in order, `skip` rows of the first."""

    number: int
    start: int
    stop: int
    pieces: tuple[int, ...]
    skip: int


def window_rows(buffer_rows: int, batch_size: int) -> int:
    """Rows of a window: the buffer's, rounded up to whole batches."""
    return math.ceil(buffer_rows / batch_size) * batch_size


def piece_order(counts_P: np.ndarray, rows: int, seed: int, epoch: int) -> np.ndarray:
    """The pieces that have rows, permuted; in file order where one window of `rows` holds all."""
    pieces = np.flatnonzero(counts_P)
    if counts_P.sum() <= rows:
        return pieces
    return np.random.default_rng([seed, epoch, _PIECES]).permutation(pieces)


def windows(
    counts_P: np.ndarray, rows: int, seed: int, epoch: int, first_row: int = 0
) -> Iterator[Window]:
    """The windows of an epoch, from the one that holds row `first_row` of its sequence.

    Args:
        counts_P: Rows of each piece.
        rows: Of a window.
        seed: Of the run.
        epoch: Counted from 0.
        first_row: Rows that are done.

    Example:
        >>> [window.pieces for window in windows(np.array([3, 0, 3]), 6, seed=0, epoch=0)]
        [(0, 2)]
    """
    order = piece_order(counts_P, rows, seed, epoch)
    ends = np.cumsum(counts_P[order])
    total = int(ends[-1]) if len(ends) else 0
    for number in range(first_row // rows, math.ceil(total / rows)):
        start, stop = number * rows, min((number + 1) * rows, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        before = int(ends[first - 1]) if first else 0
        yield Window(number, start, stop, tuple(order[first : last + 1].tolist()), start - before)


def row_order(window: Window, seed: int, epoch: int) -> np.ndarray:
    """The permutation of a window's rows; for the first window that of a split in memory."""
    entropy = [seed, epoch, _WINDOW, window.number] if window.number else [seed, epoch]
    return np.random.default_rng(entropy).permutation(window.stop - window.start)
