"""Lanes: sequences of an epoch that are read apart, so that ranks share the reading.

The rows of an epoch are dealt out to lanes in turns, as cards are: row j of the epoch comes from
lane j mod N. So a batch has its B rows, whatever N is, and B / N of them from each lane, give or
take one. Which rank reads which lane does not matter for what a batch holds.
"""

from typing import NamedTuple

from mmoe.datasets.rows.share import WHOLE, Share


class Lane(NamedTuple):
    """One lane: every N-th row of an epoch.

    Attributes:
        number: From 0.
        lanes: N, how many there are.

    Example:
        >>> [Lane(number, 3).rows_before(7) for number in range(3)]
        [3, 2, 2]
    """

    number: int = 0
    lanes: int = 1

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

    Attributes:
        lanes: Read whole. Of W ≤ N ranks rank r reads lanes [N·r // W, N·(r + 1) // W).
        share: Of the lanes' rows of a batch; more ranks than lanes share a lane, and all of its
            ranks read it.

    Example:
        >>> [[lane.number for lane in LanesOfRank.of(Share(rank, 2), 3).lanes] for rank in (0, 1)]
        [[0], [1, 2]]
        >>> [LanesOfRank.of(Share(rank, 3), 1).share for rank in (0, 1, 2)]
        [Share(rank=0, ranks=3), Share(rank=1, ranks=3), Share(rank=2, ranks=3)]
    """

    lanes: tuple[Lane, ...]
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

    Example:
        >>> print(describe_lanes(8, 4))
        8 lanes: each of 4 ranks reads 2 of them
        >>> print(describe_lanes(1, 1))
        None
    """
    if lanes < ranks:
        most = -(-ranks // lanes)
        return (
            f"note: {ranks} ranks, data.streaming.lanes: {lanes}: {_up_to(ranks, lanes)}{most} "
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


def _up_to(ranks: int, lanes: int) -> str:
    return "" if ranks % lanes == 0 else "up to "
