"""The links between ranks: what goes out over each, and which way the outputs come back.

Over one link the experts' outputs can come back in two ways:

- *pairs*: one row `y[sample, expert]` for each distinct pair; the gates mix where the sample is;
- *sums*: one row `Σ_k w[k] · y[k]` for each (row, gate), over the picks of experts there; the
  weights travel out with the picks.
"""

from itertools import accumulate
from operator import add
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

WayBack = Literal["auto", "pairs", "sums"]


class Sizes(NamedTuple):
    """Numbers of rows, picks, pairs and sums that go to another rank, told before they go.

    Attributes:
        rows: Distinct (sample, source) whose source is read by an expert there that was picked.
        picks: Picks in use of experts there, by all gates.
        pairs: Distinct (sample, expert there).
        sums: Distinct (row, gate).
    """

    rows: int
    picks: int
    pairs: int
    sums: int


class WayCosts(NamedTuple):
    """Costs that both ends of a link know, so that they choose the same way back unasked.

    Attributes:
        way: What the user asked for.
        output_dim: O.
        number_bytes: One number of an output on the wire.
        weight_bytes: One weight on the wire.
        by_batch: Whether the choice may follow from the batch.
        picks: G and K.
        bound: How many distinct experts a row has at most; None: what G and K allow.
    """

    way: WayBack
    output_dim: int
    number_bytes: int
    weight_bytes: int
    by_batch: bool
    picks: tuple[int, int]
    bound: int | None = None

    def sums_go_back(self, sizes: Sizes, num_experts: int) -> bool:
        """Says whether partial sums come back over a link: where that is fewer bytes.

        Where the wire rounds, the two ways differ in their last bits, and scores must not depend on
        what else is in the batch. Then the choice is made from the most that a row can ask for.

        Args:
            sizes: What went out over the link.
            num_experts: Of the rank at its other end.

        Example:
            >>> costs = WayCosts("auto", 64, 4, weight_bytes=4, by_batch=True, picks=(2, 8))
            >>> costs.sums_go_back(Sizes(rows=10, picks=160, pairs=80, sums=20), num_experts=8)
            True
        """
        if self.way != "auto":
            return self.way == "sums"
        if not self.by_batch:
            # From shapes alone, so that it is the same in every batch
            gates, k = self.picks
            most = gates * k if self.bound is None else self.bound
            return gates < min(most, num_experts)
        row_bytes = self.output_dim * self.number_bytes
        with_weights = sizes.sums * row_bytes + sizes.picks * self.weight_bytes
        return with_weights < sizes.pairs * row_bytes


class Links(NamedTuple):
    """Links of a rank with each of W ranks, in one direction.

    Attributes:
        sizes: What goes out over each.
        sums: Whether partial sums come back over it; else pairs do.
    """

    sizes: list[Sizes]
    sums: list[bool]

    @property
    def rows(self) -> list[int]:
        """Number of rows that go out over each link."""
        return [size.rows for size in self.sizes]

    @property
    def picks(self) -> list[int]:
        """Number of picks that go out over each link."""
        return [size.picks for size in self.sizes]

    @property
    def weights(self) -> list[int]:
        """Number of weights that go out over each link: only sums need any."""
        return [s.picks if sums else 0 for s, sums in zip(self.sizes, self.sums, strict=True)]

    @property
    def back(self) -> list[int]:
        """Number of rows that come back over each link."""
        return [s.sums if sums else s.pairs for s, sums in zip(self.sizes, self.sums, strict=True)]

    def table(self, device: torch.device) -> Tensor:
        """Makes `links_WL` for the operators: where each rank's share starts, and the totals."""
        of_ranks = zip(
            self.rows,
            self.picks,
            self.weights,
            [size.pairs for size in self.sizes],
            [size.sums for size in self.sizes],
            self.back,
            strict=True,
        )
        starts = accumulate(of_ranks, lambda a, b: tuple(map(add, a, b)), initial=(0,) * 6)
        return torch.tensor(list(starts), device=device)


def check_way(way: str) -> None:
    """Refuses a way back that is none of `WayBack`."""
    if way not in get_args(WayBack):
        known = ", ".join(get_args(WayBack))
        raise ValueError(f"way_back: expected one of {known}, got {way!r}")
