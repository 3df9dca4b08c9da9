"""`Events`: what an encoder reads of a batch; and their mean."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmoe.ops.row_sums import jagged_sum, sample_of_rows


class Events(NamedTuple):
    """The events of B rows, without padding.

    Attributes:
        e_VD: An embedding for each event, row after row, the oldest of a row first.
        lengths_B: How many each row has, int; 0 where it has none.
        target_BD: The candidate, of the same width; None where the sequence has no target.
    """

    e_VD: Tensor
    lengths_B: Tensor
    target_BD: Tensor | None = None

    @property
    def row_V(self) -> Tensor:
        """Row of each event, int64."""
        return sample_of_rows(self.lengths_B, len(self.e_VD))

    @property
    def starts_B(self) -> Tensor:
        """Returns each row's first event, int64."""
        lengths_B = self.lengths_B.to(torch.int64)
        return lengths_B.cumsum(0) - lengths_B

    @property
    def from_end_V(self) -> Tensor:
        """Place of each event from its row's end, int64: 0 is the latest.

        Example:
            >>> Events(torch.zeros(3, 4), torch.tensor([2, 1])).from_end_V.tolist()
            [1, 0, 0]
        """
        ends_B = self.lengths_B.to(torch.int64).cumsum(0)
        places_V = torch.arange(len(self.e_VD), device=self.e_VD.device)
        return ends_B.index_select(0, self.row_V) - 1 - places_V

    def latest(self, count: int) -> Tensor:
        """Returns each row's latest events side by side, `[B, count · D]`, the newest first.

        Zeros stand where a row has fewer.

        Example:
            >>> e_VD = torch.tensor([[1.0], [2.0], [3.0]])
            >>> Events(e_VD, torch.tensor([3, 0])).latest(2).tolist()
            [[3.0, 2.0], [0.0, 0.0]]
        """
        lengths_B1 = self.lengths_B.to(torch.int64)[:, None]
        back_1C = torch.arange(count, device=self.e_VD.device)[None, :]
        there_BC = back_1C < lengths_B1
        if not len(self.e_VD):
            return self.e_VD.new_zeros(len(lengths_B1), count * self.e_VD.shape[1])
        place_BC = self.starts_B[:, None] + lengths_B1 - 1 - back_1C
        rows = self.e_VD.index_select(0, torch.where(there_BC, place_BC, 0).flatten())
        rows_BCD = rows.view(*there_BC.shape, -1)
        return torch.where(there_BC[:, :, None], rows_BCD, 0).flatten(1)


class MeanEncoder(nn.Module):
    """Mean of a row's events; zeros where it has none.

    Args:
        input_dim: Width of an event.
        max_length: Most events of a row; of no use here.

    Example:
        >>> events = Events(torch.tensor([[1.0], [3.0]]), torch.tensor([2, 0]))
        >>> MeanEncoder(1, 10)(events).tolist()
        [[2.0], [0.0]]
    """

    def __init__(self, input_dim: int, max_length: int) -> None:
        super().__init__()
        self.output_dim = input_dim

    def forward(self, events: Events) -> Tensor:
        """Computes `[B, output_dim]`."""
        sums_BD = jagged_sum(events.e_VD, events.lengths_B)
        return sums_BD / events.lengths_B.clamp(min=1).to(sums_BD.dtype)[:, None]
