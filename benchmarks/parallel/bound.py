"""The fewest bytes that a layer with experts on other ranks can send, told from the picks alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

PICK_BYTES = 4  # which gate and which expert
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class LinkCounts:
    """What one rank wants of another.

    Attributes:
        rows: Distinct samples with a pick there.
        picks: Of all gates.
        pairs: Distinct (sample, expert there).
        sums: Distinct (sample, gate).
    """

    rows: int
    picks: int
    pairs: int
    sums: int

    def bytes(self, row_bytes: int, output_bytes: int) -> int:
        """Of forward and backward pass together, both directions.

        Forward: each row once, with its picks; back comes the smaller of a row for each pair and a
        sum for each gate, for which the weights have to go out as well. Backward: the gradients of
        all of these but the picks.

        Args:
            row_bytes: Of what an expert reads.
            output_bytes: Of what it returns.
        """
        back = min(self.pairs * output_bytes, self.sums * output_bytes + self.picks * WEIGHT_BYTES)
        return 2 * (self.rows * row_bytes + back) + self.picks * PICK_BYTES


def count_link(picks_BGK: Tensor, first: int, last: int) -> LinkCounts:
    """What the samples of one rank want of the rank that holds experts `first` to `last` − 1."""
    there_BGK = (picks_BGK >= first) & (picks_BGK < last)
    chosen_BE = torch.zeros(len(picks_BGK), last - first + 1, dtype=torch.bool)
    places_BX = torch.where(there_BGK, picks_BGK - first, last - first).flatten(1).long()
    chosen_BE.scatter_(1, places_BX, True)
    return LinkCounts(
        rows=int(there_BGK.flatten(1).any(1).sum()),
        picks=int(there_BGK.sum()),
        pairs=int(chosen_BE[:, :-1].sum()),
        sums=int(there_BGK.any(2).sum()),
    )
