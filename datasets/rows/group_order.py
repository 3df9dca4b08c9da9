"""Order of rows that a loss compares: those of a group side by side, and in one batch."""

from dataclasses import dataclass

import numpy as np

from mmoe.datasets.rows.share import Share

_GROUPS = 4  # added to (seed, epoch), as in `order.py`


@dataclass(frozen=True)
class GroupOrder:
    """An epoch's rows, group after group, and where each part of a group begins.

    A group that has more rows than a batch is cut into parts of at most so many, others anew in
    every epoch. Part p is in batch `starts_P[p] // size`, whole: batches have about `size` rows,
    up to twice as many, and there are as many of them as without groups, or one fewer. Everything
    follows from seed, epoch and groups, so training can go on anywhere.

    Attributes:
        rows_N: Numbers of rows.
        starts_P: Where the parts begin among them, rising.

    Example:
        >>> order = GroupOrder.of(np.array([7, 3, 7, -1, 3, 7]), size=2, seed=0, epoch=0)
        >>> sorted(order.rows_N.tolist()), order.starts_P.tolist()
        ([0, 1, 2, 3, 4, 5], [0, 2, 3, 4])
    """

    rows_N: np.ndarray
    starts_P: np.ndarray

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
        ends = [rows * r // share.ranks for r in (share.rank, share.rank + 1)]
        own = np.searchsorted(begins_P - begins_P[:1], ends) if rows else (0, 0)
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
