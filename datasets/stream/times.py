"""How rows are spread over time, in bounded memory."""

import numpy as np

from mmoe.datasets.values.time_units import TimeUnits

_MOST = 1 << 20  # distinct moments kept apart; 16 MB
_LEAST = 1 << 16  # moments that wait before they are added up
_SIGN = np.int64(-(2**63))


class TimeFit:
    """Counts rows by moment; beyond 2²⁰ distinct moments neighbours are counted as one.

    Neighbours share all but their last `coarse` bits, and stand for the first of them: a split then
    cuts between two such moments, at most a few millionths of the whole time away from the exact
    place. `coarse` depends on all the moments alone, never on their chunks.

    Args:
        name: The column.
        origin: What the user calls the data; starts error messages.
    """

    def __init__(self, name: str, origin: str) -> None:
        self.name, self.origin = name, origin
        self.moments = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []  # moments and counts, not added up
        self.waiting = 0  # moments in them
        self.coarse = 0
        self.real = False
        self.units = TimeUnits(name)

    def add(self, times_N: np.ndarray, file: str) -> None:
        """More rows of `file`: int64 or float64, as `to_times` gives them.

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
        if self.waiting > max(len(self.moments), _LEAST):
            self._add_up()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Ascending moments and the number of rows of each."""
        self._add_up()
        return (_from_bits(self.moments) if self.real else self.moments), self.counts

    def _coarser(self, times_N: np.ndarray) -> np.ndarray:
        return times_N >> self.coarse << self.coarse

    def _add_up(self) -> None:
        moments = np.concatenate([self.moments, *(m for m, _ in self.pending)])
        counts = np.concatenate([self.counts, *(c for _, c in self.pending)])
        self.pending, self.waiting = [], 0
        while True:
            self.moments, place = np.unique(self._coarser(moments), return_inverse=True)
            self.counts = np.bincount(place, weights=counts).astype(np.int64)
            if len(self.moments) <= _MOST:
                return
            self.coarse += 1
            moments, counts = self.moments, self.counts


def _ordered_bits(values: np.ndarray) -> np.ndarray:
    """float64 → int64 in the same order."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, ~bits ^ _SIGN, bits)


def _from_bits(bits: np.ndarray) -> np.ndarray:
    return np.where(bits < 0, ~(bits ^ _SIGN), bits).view(np.float64)
