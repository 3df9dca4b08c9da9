"""Statistics of a column of numbers, taken chunk by chunk in bounded memory.

What comes out depends on the sequence of values alone, never on how it is cut into chunks: so a
table in memory and the same rows from a stream give the same bits.
"""

import math
from dataclasses import dataclass

import numpy as np

from mmoe.datasets.values.hashing import mix64

_BLOCK = 8192


@dataclass
class Moments:
    """Mean and deviation of values seen chunk by chunk; near the float64 limit too.

    Example:
        >>> moments = Moments()
        >>> moments.add(np.array([1.0, 2.0])), moments.add(np.array([3.0]))
        (None, None)
        >>> moments.finish()
        (2.0, 0.816496580927726)
    """

    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    rest: np.ndarray | None = None  # fewer than a block
    # Values whose moments are taken at once; fewer are held until there are so many
    block: int = _BLOCK

    def add(self, values: np.ndarray) -> None:
        """Adds more values, float64, none of them NaN."""
        if not len(values):
            return
        self.lowest = min(self.lowest, float(values.min()))
        self.highest = max(self.highest, float(values.max()))
        if self.rest is not None:
            values = np.concatenate([self.rest, values])
        whole = len(values) // self.block * self.block
        self.rest = values[whole:].copy()
        if whole:
            self._merge(values[:whole].reshape(-1, self.block))

    def finish(self) -> tuple[float, float]:
        """Returns mean and deviation; a constant's deviation is 1, and so is that of nothing."""
        if self.rest is not None and len(self.rest):
            self._merge(self.rest[None])
            self.rest = None
        # A constant column's deviation is rounding noise; dividing by it would blow noise up.
        constant = self.lowest == self.highest
        return self.mean, 1.0 if constant or self.deviation == 0 else self.deviation

    @property
    def ends(self) -> tuple[float, ...]:
        """The lowest and the highest value; () where there was none."""
        return (self.lowest, self.highest) if self.lowest <= self.highest else ()

    def _merge(self, blocks_KB: np.ndarray) -> None:
        sizes_K = np.abs(blocks_KB).max(axis=1)
        sizes_K[sizes_K == 0] = 1.0
        unit_KB = blocks_KB / sizes_K[:, None]
        means, deviations = unit_KB.mean(axis=1) * sizes_K, unit_KB.std(axis=1) * sizes_K
        for mean, deviation in zip(means.tolist(), deviations.tolist(), strict=True):
            self._merge_one(blocks_KB.shape[1], mean, deviation)

    def _merge_one(self, count: int, mean: float, deviation: float) -> None:
        """Chan, Golub and LeVeque's update, in units of the largest number in it."""
        total = self.count + count
        if self.count == 0:
            self.count, self.mean, self.deviation = count, mean, deviation
            return
        size = max(abs(self.mean), abs(mean), self.deviation, deviation) or 1.0
        old, new = self.count / total, count / total
        mean_1, mean_2 = self.mean / size, mean / size
        spread = old * (self.deviation / size) ** 2 + new * (deviation / size) ** 2
        spread += old * new * (mean_2 - mean_1) ** 2
        self.mean = size * (old * mean_1 + new * mean_2)
        self.deviation = size * math.sqrt(spread)
        self.count = total


class Quantiles:
    """Sample of values seen chunk by chunk: all of them up to `size`, uniform beyond.

    Each value draws a number from its place in the sequence; the `size` smallest stay.

    Args:
        size: Values kept at the end; half as many again while adding.
        distinct: Remember the distinct values while they are at most so many.
    """

    def __init__(self, size: int, distinct: int) -> None:
        self.size, self.most = size, distinct
        self.seen = 0
        self.highest = -math.inf
        self.distinct: np.ndarray | None = np.zeros(0)
        self.draws: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.held = 0
        self.limit = np.uint64(2**64 - 1)

    def add(self, values: np.ndarray) -> None:
        """Adds more values, float64, none of them NaN."""
        if not len(values):
            return
        # A value's draw follows from its number, so that chunks play no part
        draws = mix64(np.arange(self.seen, self.seen + len(values), dtype=np.uint64))
        self.seen += len(values)
        self.highest = max(self.highest, float(values.max()))
        if self.distinct is not None:
            found = np.union1d(self.distinct, values)
            self.distinct = found if len(found) <= self.most else None
        kept = draws <= self.limit
        self.draws.append(draws[kept])
        self.values.append(values[kept])
        self.held += int(kept.sum())
        if self.held > self.size * 3 // 2:
            self._prune()

    def edges(self, buckets: int) -> tuple[float, ...]:
        """Returns upper edges of all buckets but the last: quantiles, or values where few.

        A value with more than 1 / buckets of the rows has a bucket of its own, and the quantiles
        are those of the other rows.
        """
        if not self.seen:
            return ()
        if self.distinct is not None and len(self.distinct) <= buckets:
            return tuple(self.distinct[:-1].tolist())
        edges = bucket_edges(*self._sample(), buckets)
        return tuple(edges[edges < self.highest].tolist())

    def ends(self, pieces: int) -> np.ndarray:
        """Returns both ends of at most so many pieces: quantiles, or values where few; float64."""
        if not self.seen:
            return np.zeros(0)
        if self.distinct is not None and len(self.distinct) <= pieces + 1:
            return self.distinct
        return piece_ends(*self._sample(), pieces)

    def _sample(self) -> tuple[np.ndarray, np.ndarray]:
        """The sampled values, ascending, and how often each is among them."""
        if self.held > self.size:
            self._prune()
        return np.unique(np.concatenate(self.values), return_counts=True)

    def _prune(self) -> None:
        draws, values = np.concatenate(self.draws), np.concatenate(self.values)
        kept = np.argpartition(draws, self.size)[: self.size]
        self.draws, self.values = [draws[kept]], [values[kept]]
        self.held, self.limit = self.size, draws[kept].max()


def bucket_edges(values_V: np.ndarray, counts_V: np.ndarray, buckets: int) -> np.ndarray:
    """Returns the upper edges of buckets with about as many rows each; the last one needs none.

    A value with more than 1 / buckets of the rows is alone in its bucket; the other buckets are
    spread over the values between, by their rows. Quantiles of all rows would spend themselves on
    such values: of a capital gain that is 0 in 92 of 100 rows 20 of them tell 2 apart. On an
    invented census (30,000 rows; gains, losses, 40 hours a week) buckets of the rest raised the
    test AUC from 0.739 to 0.751 and from 0.666 to 0.667, two seeds.

    Args:
        values_V: Distinct values, ascending.
        counts_V: Rows of each, which may be 0.
        buckets: At most so many, 1 at least.

    Example:
        >>> bucket_edges(np.arange(6.0), np.array([94, 1, 1, 2, 1, 1]), 4)
        array([0., 3., 4.])
    """
    heavy_V = counts_V * buckets > counts_V.sum()
    edges_V = heavy_V.copy()
    starts = np.flatnonzero(np.diff(heavy_V, prepend=True) & ~heavy_V)
    stops = np.flatnonzero(np.diff(heavy_V, append=True) & ~heavy_V) + 1
    runs = [(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]
    rows = [int(counts_V[a:b].sum()) for a, b in runs]
    for (a, b), share in zip(runs, _shares(rows, buckets - int(heavy_V.sum())), strict=True):
        if share:
            ends = np.cumsum(counts_V[a:b])
            positions = (np.arange(1, share) * ends[-1]) // share
            edges_V[a + np.searchsorted(ends, positions, side="right")] = True
            edges_V[b - 1] = b < len(values_V)  # what is next is heavy, or nothing
        elif b == len(values_V):
            edges_V[a - 1] = False
    return values_V[edges_V]


def piece_ends(values_V: np.ndarray, counts_V: np.ndarray, pieces: int) -> np.ndarray:
    """Returns the ends of pieces with about as many rows each, the outermost included.

    They are the edges of `bucket_edges`. Next to a value with more than 1 / pieces of the rows ends
    a piece as well, so that the number takes a whole step from there to that value.

    Args:
        values_V: Distinct values, ascending.
        counts_V: Rows of each.
        pieces: At most so many, 1 at least.

    Example:
        >>> piece_ends(np.arange(6.0), np.array([94, 1, 1, 2, 1, 1]), 4)
        array([0., 1., 3., 4., 5.])
    """
    ends = values_V[[0, -1]]
    for buckets in range(pieces, 0, -1):  # steps next to heavy values are pieces too
        heavy_V = counts_V * buckets > counts_V.sum()
        edges = bucket_edges(values_V, counts_V, buckets)
        ends = np.unique([values_V[0], *edges, *values_V[1:][heavy_V[:-1]], values_V[-1]])
        if len(ends) <= pieces + 1:
            break
    return ends


def _shares(rows: list[int], buckets: int) -> list[int]:
    """Buckets for each run of values: one where there are enough of them, the rest by rows.

    A run without any goes with the heavy value above it, the last one with that below.
    """
    order = sorted(range(len(rows)), key=lambda run: (-rows[run], run))[:buckets]
    total = max(sum(rows[run] for run in order), 1)  # 0 where all rows are of heavy values
    left = buckets - len(order)
    shares, seen = [0] * len(rows), 0
    for run in order:
        shares[run] = 1 + (seen + rows[run]) * left // total - seen * left // total
        seen += rows[run]
    return shares
