"""`Share`: which rows of every batch one of several ranks trains on."""

from typing import NamedTuple

import numpy as np


class Share(NamedTuple):
    """One rank's share: rows [B·rank // ranks, B·(rank + 1) // ranks) of a batch of B.

    So several ranks together train on the batches of one process; they differ by a row at most.

    Attributes:
        rank: From 0.
        ranks: How many share a batch.

    Example:
        >>> [Share(rank, 3).of(np.arange(5)).tolist() for rank in range(3)]
        [[0], [1, 2], [3, 4]]
    """

    rank: int = 0
    ranks: int = 1

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
        ends = [rows * r // self.ranks for r in (self.rank, self.rank + 1)]
        if requests_B is not None and rows:
            begins = np.flatnonzero(np.diff(requests_B)) + 1
            ends = [self._nearest(end, begins, rows) for end in ends]
        return rows_B[ends[0] : ends[1]]

    def _nearest(self, end: int, begins: np.ndarray, rows: int) -> int:
        """The row nearest to `end` with which a request begins; `end` where that is too far."""
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
