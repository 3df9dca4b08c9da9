"""Order of rows: a function of seed, epoch and sizes alone, so training can go on anywhere.

The pieces (row groups) of a split are permuted; a few at a time are read side by side, in turns.
That sequence is cut into windows of whole batches, and the rows of each window are permuted. Window
w of an epoch needs the pieces that overlap it and nothing of its past. With several lanes the
permuted pieces are cut into as many equal stretches first, and each of them is such a sequence.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mmoe.datasets.rows.lanes import WHOLE_EPOCH, Lane
from mmoe.datasets.values.first_seen import first_seen

# Added to (seed, epoch) they make generators of their own; zeros at the end would make none.
_PIECES, _WINDOW, _LANE = 1, 2, 3


@dataclass(frozen=True)
class Take:
    """Rows [start, start + rows) of those of a piece that belong to the split."""

    piece: int
    start: int
    rows: int

    def cut(self, rows: int) -> tuple["Take", "Take"]:
        """Cuts it into the first rows, at most so many, and the others."""
        rows = min(rows, self.rows)
        return (
            Take(self.piece, self.start, rows),
            Take(self.piece, self.start + rows, self.rows - rows),
        )


@dataclass(frozen=True)
class Window:
    """Rows [start, stop) of the epoch that are in memory together, and one lane's of them."""

    number: int
    start: int
    stop: int
    takes: tuple[Take, ...]
    lane: Lane = WHOLE_EPOCH

    def __len__(self) -> int:
        return sum(take.rows for take in self.takes)

    def rows_before(self, row: int) -> int:
        """Returns how many of this window's rows come before row `row` of the epoch."""
        return self.lane.rows_before(row) - self.lane.rows_before(self.start)


def window_rows(buffer_rows: int, batch_size: int) -> int:
    """Returns the rows of a window: the buffer's, rounded up to whole batches."""
    return math.ceil(buffer_rows / batch_size) * batch_size


def windows(
    counts_P: np.ndarray,
    rows: int,
    seed: int,
    epoch: int,
    first_row: int = 0,
    interleave: int = 1,
    lane: Lane = WHOLE_EPOCH,
) -> Iterator[Window]:
    """Yields the windows of an epoch, from the one that holds row `first_row`.

    Where one window holds everything, its rows come in file order.

    Args:
        counts_P: Rows of each piece.
        rows: Of a window, over all lanes.
        seed: Of the run.
        epoch: Counted from 0.
        first_row: Rows that are done, over all lanes.
        interleave: Pieces read side by side, over all lanes.
        lane: Whose rows of each window is meant; it may be no row.

    Example:
        >>> [window] = windows(np.array([3, 0, 2]), 6, seed=0, epoch=0)
        >>> window.takes
        (Take(piece=0, start=0, rows=3), Take(piece=2, start=0, rows=2))
        >>> [window] = windows(np.array([3, 0, 2]), 6, seed=0, epoch=0, lane=Lane(1, 2))
        >>> window.takes
        (Take(piece=2, start=0, rows=2),)
    """
    order, total = np.flatnonzero(counts_P), int(counts_P.sum())
    interleave = math.ceil(interleave / lane.lanes)
    if total <= rows:
        interleave = 1
    else:
        order = np.random.default_rng([seed, epoch, _PIECES]).permutation(order)
    per_turn = math.ceil(rows / lane.lanes / interleave)
    turns = _turns(_of_lane(counts_P, order, lane), interleave, per_turn)
    starts = range(0, total, rows)
    stops = [min(start + rows, total) for start in starts]
    sizes = [lane.rows_before(b) - lane.rows_before(a) for a, b in zip(starts, stops, strict=True)]
    for number, takes in enumerate(_cut(turns, sizes)):
        if starts[number] + rows > first_row:
            yield Window(number, starts[number], stops[number], takes, lane)


def _of_lane(counts_P: np.ndarray, order: np.ndarray, lane: Lane) -> Iterator[Take]:
    """The lane's rows of the pieces in order; a piece at a boundary is in two lanes."""
    ends = np.cumsum(counts_P[order])  # in the sequence of all pieces
    total = int(counts_P.sum())
    first = lane.first_row(total)
    stop = first + lane.rows_before(total)
    if first == stop:
        return
    mine = slice(np.searchsorted(ends, first, "right"), np.searchsorted(ends, stop) + 1)
    for piece, end in zip(order[mine].tolist(), ends[mine].tolist(), strict=True):
        begin = end - int(counts_P[piece])
        start = max(begin, first)
        yield Take(piece, start - begin, min(end, stop) - start)


def _turns(takes: Iterable[Take], interleave: int, rows: int) -> Iterator[Take]:
    """Round robin over `interleave` pieces; where one ends, the next of the order takes over."""
    waiting = iter(takes)
    active = deque(islice(waiting, interleave))
    while active:
        turn, rest = active.popleft().cut(rows)
        yield turn
        active.extend([rest] if rest.rows else islice(waiting, 1))


def _cut(turns: Iterator[Take], sizes: Sequence[int]) -> Iterator[tuple[Take, ...]]:
    """The turns, in groups of so many rows."""
    rest = Take(0, 0, 0)
    for size in sizes:
        takes = []
        while size:
            take, rest = (rest if rest.rows else next(turns)).cut(size)
            takes.append(take)
            size -= take.rows
        yield tuple(takes)


def row_order(
    window: Window, seed: int, epoch: int, requests_N: np.ndarray | None = None
) -> np.ndarray:
    """Returns the permutation of a window's rows; the first is that of a split in memory.

    Args:
        window: Of an epoch.
        seed: Of the run.
        epoch: Counted from 0.
        requests_N: Number of each row's request: requests are permuted then, and the rows of each
            come one after another. Where batches end, one of them is cut.

    Example:
        >>> row_order(Window(0, 0, 5, (Take(0, 0, 5),)), 0, 0, np.array([0, 0, 1, 2, 2])).tolist()
        [2, 3, 4, 0, 1]
    """
    entropy = [seed, epoch]
    if window.lane.lanes > 1:
        entropy += [_LANE, window.lane.number, window.number]
    elif window.number:
        entropy += [_WINDOW, window.number]
    draw = np.random.default_rng(entropy)
    if requests_N is None:
        return draw.permutation(len(window))
    # Counted among these rows: the numbers given may be of other lanes' requests too
    distinct_M, place_N = first_seen(requests_N)
    turn_M = draw.permutation(len(distinct_M))
    return np.argsort(turn_M[place_N], kind="stable")
