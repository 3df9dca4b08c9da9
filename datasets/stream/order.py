"""Which rows come when: a function of seed, epoch and sizes alone, so training can go on anywhere.

The pieces (row groups) of a split are permuted; a few at a time are read side by side, in turns.
That sequence is cut into windows of whole batches, and the rows of each window are permuted. Window
w of an epoch needs the pieces that overlap it and nothing of its past.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

# Added to (seed, epoch) they make generators of their own; zeros at the end would make none.
_PIECES, _WINDOW = 1, 2


@dataclass(frozen=True)
class Take:
    """Rows [start, start + rows) of those of a piece that belong to the split."""

    piece: int
    start: int
    rows: int


@dataclass(frozen=True)
class Window:
    """Rows [start, stop) of the epoch's sequence, and where they are."""

    number: int
    start: int
    stop: int
    takes: tuple[Take, ...]


def window_rows(buffer_rows: int, batch_size: int) -> int:
    """Rows of a window: the buffer's, rounded up to whole batches."""
    return math.ceil(buffer_rows / batch_size) * batch_size


def windows(
    counts_P: np.ndarray,
    rows: int,
    seed: int,
    epoch: int,
    first_row: int = 0,
    interleave: int = 1,
) -> Iterator[Window]:
    """The windows of an epoch, from the one that holds row `first_row` of its sequence.

    Where one window holds everything, its rows come in file order.

    Args:
        counts_P: Rows of each piece.
        rows: Of a window.
        seed: Of the run.
        epoch: Counted from 0.
        first_row: Rows that are done.
        interleave: Pieces read side by side.

    Example:
        >>> [window] = windows(np.array([3, 0, 2]), 6, seed=0, epoch=0)
        >>> window.takes
        (Take(piece=0, start=0, rows=3), Take(piece=2, start=0, rows=2))
    """
    pieces, total = np.flatnonzero(counts_P), int(counts_P.sum())
    if total <= rows:
        turns = _turns(counts_P, pieces, 1, total)
    else:
        order = np.random.default_rng([seed, epoch, _PIECES]).permutation(pieces)
        turns = _turns(counts_P, order, interleave, math.ceil(rows / interleave))
    start, taken, takes = 0, 0, []
    for turn in turns:
        while turn.rows:
            take = Take(turn.piece, turn.start, min(turn.rows, rows - taken))
            turn = Take(turn.piece, turn.start + take.rows, turn.rows - take.rows)
            takes.append(take)
            taken += take.rows
            if taken == rows or start + taken == total:
                if start + rows > first_row:
                    yield Window(start // rows, start, start + taken, tuple(takes))
                start, taken, takes = start + taken, 0, []


def _turns(counts_P: np.ndarray, order: np.ndarray, interleave: int, rows: int) -> Iterator[Take]:
    """Round robin over `interleave` pieces; where one ends, the next of the order takes over."""
    waiting = iter(order.tolist())
    active = deque((piece, 0) for piece in islice(waiting, interleave))
    while active:
        piece, start = active.popleft()
        stop = min(start + rows, int(counts_P[piece]))
        yield Take(piece, start, stop - start)
        if stop < counts_P[piece]:
            active.append((piece, stop))
        else:
            active.extend((piece, 0) for piece in islice(waiting, 1))


def row_order(window: Window, seed: int, epoch: int) -> np.ndarray:
    """The permutation of a window's rows; for the first window that of a split in memory."""
    entropy = [seed, epoch, _WINDOW, window.number] if window.number else [seed, epoch]
    return np.random.default_rng(entropy).permutation(window.stop - window.start)
