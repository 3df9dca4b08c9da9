"""Order of rows: a function of seed, epoch and sizes alone, so training can go on anywhere.

The pieces (row groups) of a split are permuted; a few at a time are read side by side, in turns.
That sequence is cut into windows of whole batches, and the rows of each window are permuted. Window
w of an epoch needs the pieces that overlap it and nothing of its past. With several lanes the
permuted pieces are cut into as many equal stretches first, and each of them is such a sequence.

Lanes are read apart, so that ranks share the reading. The rows of an epoch are dealt out to them in
turns, as cards are: row j of the epoch comes from lane j mod N. So a batch has its B rows, whatever
N is, and B / N of them from each lane, give or take one. Which rank reads which lane does not
matter for what a batch holds.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from mmoe.datasets.values.keys import first_seen


class Share(NamedTuple):
    """One rank's share: rows [B·rank // ranks, B·(rank + 1) // ranks) of a batch of B.

    So several ranks together train on the batches of one process; they differ by a row at most.

    Example:
        >>> [Share(rank, 3).of(np.arange(5)).tolist() for rank in range(3)]
        [[0], [1, 2], [3, 4]]
    """

    rank: int = 0  # from 0
    ranks: int = 1  # how many share a batch

    def of(self, rows_B: np.ndarray, requests_B: np.ndarray | None = None) -> np.ndarray:
        """Returns this rank's rows of a batch, in order.

        Args:
            rows_B: Of the batch.
            requests_B: Number of each one's request: a share then begins with a request, where one
                begins within half a share's rows of where it would.

        Example:
            >>> requests_B = np.array([7, 7, 7, 7, 4, 4, 4, 2])
            >>> [Share(rank, 2).of(np.arange(8), requests_B).tolist() for rank in (0, 1)]
            [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        rows = len(rows_B)
        first, stop = self.span(rows)
        if requests_B is not None and rows:
            begins = np.flatnonzero(np.diff(requests_B)) + 1
            first, stop = (self._nearest(end, begins, rows) for end in (first, stop))
        return rows_B[first:stop]

    def _nearest(self, end: int, begins: np.ndarray, rows: int) -> int:
        """The row nearest to `end` that begins a request; `end` itself where that is too far."""
        if end in (0, rows) or not len(begins):
            return end
        nearest = int(begins[np.abs(begins - end).argmin()])
        return nearest if abs(nearest - end) * 2 * self.ranks < rows else end

    def span(self, total: int, unit: int = 1) -> tuple[int, int]:
        """Returns first and end of this rank's rows of `total`, in whole units but the last.

        Example:
            >>> [Share(rank, 2).span(50, unit=16) for rank in (0, 1)]
            [(0, 32), (32, 50)]
        """
        units = -(-total // unit)
        first, stop = (units * r // self.ranks * unit for r in (self.rank, self.rank + 1))
        return min(first, total), min(stop, total)


WHOLE = Share()


class Lane(NamedTuple):
    """One lane: every N-th row of an epoch.

    Example:
        >>> [Lane(number, 3).rows_before(7) for number in range(3)]
        [3, 2, 2]
    """

    number: int = 0  # from 0
    lanes: int = 1  # N, how many there are

    def rows_before(self, row: int) -> int:
        """Returns how many of the epoch's rows [0, row) are this lane's."""
        return (row + self.lanes - 1 - self.number) // self.lanes

    def first_row(self, total: int) -> int:
        """Returns where the lane begins when the lanes of `total` rows are laid end to end."""
        return self.number * (total // self.lanes) + min(self.number, total % self.lanes)


WHOLE_EPOCH = Lane()
"""The one lane there is where nobody asks for several."""


class LanesOfRank(NamedTuple):
    """Lanes that one rank reads, and what it takes of them.

    Shares of a batch, joined in order of ranks, are the rows of its lanes in order, however many
    ranks there are.

    Example:
        >>> [[lane.number for lane in LanesOfRank.of(Share(rank, 2), 3).lanes] for rank in (0, 1)]
        [[0], [1, 2]]
        >>> [LanesOfRank.of(Share(rank, 3), 1).share for rank in (0, 1, 2)]
        [Share(rank=0, ranks=3), Share(rank=1, ranks=3), Share(rank=2, ranks=3)]
    """

    # Read whole. Of W ≤ N ranks rank r reads lanes [N·r // W, N·(r + 1) // W).
    lanes: tuple[Lane, ...]
    # Of the lanes' rows of a batch; more ranks than lanes share a lane, and all of its ranks read
    # it
    share: Share

    @classmethod
    def of(cls, share: Share, lanes: int) -> "LanesOfRank":
        """Returns those of rank `share.rank` of `share.ranks`, where there are `lanes`."""
        rank, ranks = share
        if ranks <= lanes:
            first, stop = lanes * rank // ranks, lanes * (rank + 1) // ranks
            return cls(tuple(Lane(number, lanes) for number in range(first, stop)), WHOLE)
        number = (lanes * (rank + 1) - 1) // ranks  # whose ranks [W·v // N, W·(v + 1) // N) hold r
        first, stop = ranks * number // lanes, ranks * (number + 1) // lanes
        return cls((Lane(number, lanes),), Share(rank - first, stop - first))


def describe_lanes(lanes: int, ranks: int) -> str | None:
    """Returns a line for the user on who reads what, or None.

    Args:
        lanes: `data.streaming.lanes`.
        ranks: How many train.

    Example:
        >>> print(describe_lanes(8, 4))
        8 lanes: each of 4 ranks reads 2 of them
        >>> print(describe_lanes(1, 1))
        None
    """
    if lanes < ranks:
        most, up_to = -(-ranks // lanes), "up to " if ranks % lanes else ""
        return (
            f"note: {ranks} ranks, data.streaming.lanes: {lanes}: {up_to}{most} "
            f"ranks read each row; with lanes: {ranks} (or a multiple) one does, and rows come in "
            "another order"
        )
    if ranks == 1:
        return None if lanes == 1 else f"{lanes} lanes, all read here"
    text = f"{lanes} lanes: each of {ranks} ranks reads"
    if lanes % ranks == 0:
        return f"{text} {lanes // ranks} of them"
    return (
        f"{text} {lanes // ranks} or {lanes // ranks + 1} of them; a multiple of {ranks} would "
        "give each as many rows"
    )


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


_GROUPS = 4  # added to (seed, epoch), as in `order.py`


@dataclass(frozen=True)
class GroupOrder:
    """An epoch's rows, group after group, and where each part of a group begins.

    A group that has more rows than a batch is cut into parts of at most so many, others anew in
    every epoch. Part p is in batch `starts_P[p] // size`, whole: batches have about `size` rows,
    up to twice as many, and there are as many of them as without groups, or one fewer. Everything
    follows from seed, epoch and groups, so training can go on anywhere.

    Example:
        >>> order = GroupOrder.of(np.array([7, 3, 7, -1, 3, 7]), size=2, seed=0, epoch=0)
        >>> sorted(order.rows_N.tolist()), order.starts_P.tolist()
        ([0, 1, 2, 3, 4, 5], [0, 2, 3, 4])
    """

    rows_N: np.ndarray  # numbers of rows
    starts_P: np.ndarray  # where the parts begin among them, rising

    @classmethod
    def of(cls, groups_N: np.ndarray, size: int, seed: int, epoch: int) -> "GroupOrder":
        """Shuffles the groups, and the rows within each.

        Args:
            groups_N: Code of each row's group; below 0: it is on its own.
            size: Most rows of a part.
            seed: Of the run.
            epoch: Counted from 0.
        """
        draw, count = np.random.default_rng([seed, epoch, _GROUPS]), len(groups_N)
        alone_N = groups_N < 0
        most = int(groups_N.max(initial=-1)) + 1
        own_N = np.where(alone_N, most + np.arange(count), groups_N)
        shuffled_N = draw.permutation(count)
        by_group_N = shuffled_N[np.argsort(own_N[shuffled_N], kind="stable")]
        sorted_N = own_N[by_group_N]
        first_N = np.flatnonzero(np.diff(sorted_N, prepend=-1))  # of each group
        lengths_G = np.diff(first_N, append=count)
        parts_G = -(-lengths_G // size)
        place_P = np.arange(parts_G.sum()) - np.repeat(np.cumsum(parts_G) - parts_G, parts_G)
        begin_P = np.repeat(first_N, parts_G) + place_P * size
        length_P = np.diff(begin_P, append=count)
        turn_P = draw.permutation(len(begin_P))
        begin_P, length_P = begin_P[turn_P], length_P[turn_P]
        starts_P = np.cumsum(length_P) - length_P
        rows_N = np.repeat(begin_P - starts_P, length_P) + np.arange(count)
        return cls(by_group_N[rows_N], starts_P)

    def batches(self, size: int) -> int:
        """Returns how many batches have rows: they come first."""
        return int(self.starts_P[-1]) // size + 1 if len(self.starts_P) else 0

    def batch(self, number: int, size: int, share: Share) -> tuple[np.ndarray, np.ndarray]:
        """Returns one rank's rows of a batch, and the number of each one's part, from 0.

        Ranks together have the whole batch, and a part is on one of them.
        """
        first, stop = np.searchsorted(self.starts_P, [number * size, (number + 1) * size])
        begins_P = np.append(self.starts_P, len(self.rows_N))[first : stop + 1]
        rows = int(begins_P[-1] - begins_P[0]) if stop > first else 0
        own = np.searchsorted(begins_P - begins_P[:1], share.span(rows)) if rows else (0, 0)
        mine_P = begins_P[own[0] : own[1] + 1]
        if own[0] == own[1]:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        lengths_P = np.diff(mine_P)
        parts_B = np.repeat(np.arange(len(lengths_P)), lengths_P)
        return self.rows_N[mine_P[0] : mine_P[-1]], parts_B


def cut_groups(groups_N: np.ndarray, size: int) -> int:
    """Counts the groups that have more rows than a batch.

    Example:
        >>> cut_groups(np.array([0, 0, 0, 1, -1]), size=2)
        1
    """
    known_N = groups_N[groups_N >= 0]
    return int(np.count_nonzero(np.bincount(known_N) > size)) if len(known_N) else 0
