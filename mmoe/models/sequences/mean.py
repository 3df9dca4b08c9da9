"""`MeanEncoder`: all events alike."""

from torch import Tensor, nn

from mmoe.models.sequences.events import Events
from mmoe.ops.jagged_sum import jagged_sum


class MeanEncoder(nn.Module):
    """Mean of a row's events; zeros where it has none.

    Args:
        input_dim: Width of an event.
        max_length: Most events of a row; of no use here.

    Example:
        >>> import torch
        >>> from mmoe.models.sequences.events import Events
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
