"""Counts how rows are spread over time, in bounded memory."""

import numpy as np

from mmoe.datasets.values.datetimes import TimeUnits

_MOST = 1 << 20  # distinct times kept apart; 16 MB
_LEAST = 1 << 16  # times that wait before they are added up
_SIGN = np.int64(-(2**63))


class TimeFit:
    """Counts rows by time; beyond 2²⁰ distinct times neighbours are counted as one.

    Neighbours share all but their last `coarse` bits, and stand for the first of them: a split then
    cuts between two such times, at most a few millionths of the whole time away from the exact
    place. `coarse` depends on all the times alone, never on their chunks.

    Args:
        name: The column.
        origin: What the user calls the data; starts error messages.
    """

    def __init__(self, name: str, origin: str) -> None:
        self.name, self.origin = name, origin
        self.times = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []  # times and counts, not added up
        self.waiting = 0  # times in them
        self.coarse = 0
        self.real = False
        self.units = TimeUnits(name)

    def add(self, times_N: np.ndarray, file: str) -> None:
        """Counts more rows of `file`: int64 or float64, as `to_times` gives them.

        Raises:
            ValueError: They are in another unit than those of another file.
        """
        self.units.add(times_N, file)
        if times_N.dtype.kind == "f":
            self.real = True
            times_N = _ordered_bits(times_N)
        found, counts = np.unique(self._coarser(times_N.astype(np.int64)), return_counts=True)
        self.pending.append((found, counts))
        self.waiting += len(found)
        if self.waiting > max(len(self.times), _LEAST):
            self._add_up()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns ascending times and the number of rows of each."""
        self._add_up()
        return (_from_bits(self.times) if self.real else self.times), self.counts

    def _coarser(self, times_N: np.ndarray) -> np.ndarray:
        return times_N >> self.coarse << self.coarse

    def _add_up(self) -> None:
        times = np.concatenate([self.times, *(m for m, _ in self.pending)])
        counts = np.concatenate([self.counts, *(c for _, c in self.pending)])
        self.pending, self.waiting = [], 0
        while True:
            self.times, place = np.unique(self._coarser(times), return_inverse=True)
            self.counts = np.bincount(place, weights=counts).astype(np.int64)
            if len(self.times) <= _MOST:
                return
            self.coarse += 1
            times, counts = self.times, self.counts


def _ordered_bits(values: np.ndarray) -> np.ndarray:
    """float64 → int64 in the same order."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, ~bits ^ _SIGN, bits)


def _from_bits(bits: np.ndarray) -> np.ndarray:
    return np.where(bits < 0, ~(bits ^ _SIGN), bits).view(np.float64)
