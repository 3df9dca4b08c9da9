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

    def of(self, rows_B: np.ndarray) -> np.ndarray:
        """Returns this rank's rows of a batch, in order."""
        first, last = (len(rows_B) * r // self.ranks for r in (self.rank, self.rank + 1))
        return rows_B[first:last]

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
