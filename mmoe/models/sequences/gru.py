"""`GRUEncoder`: events read one after another."""

import torch
from torch import Tensor, nn

from mmoe.mixture import stable_linear, stable_sigmoid
from mmoe.models.sequences.events import Events


class GRUEncoder(nn.Module):
    """Last state of a gated recurrent unit over a row's events; zeros where it has none.

    `r = σ(W_r e + U_r h)`, `z = σ(W_z e + U_z h)`, `n = tanh(W_n e + r ⊙ (U_n h))`,
    `h ← (1 − z) ⊙ n + z ⊙ h`, with biases. A step computes the rows that have so many events and no
    others.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width of an event.
        max_length: Most events of a row; of no use here.
        output: Width of the state; None: that of an event.

    Example:
        >>> GRUEncoder(4, 10, output=6)(Events(torch.ones(3, 4), torch.tensor([2, 1]))).shape
        torch.Size([2, 6])

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder" (EMNLP 2014), in
        the form of `torch.nn.GRU`; for recommendation Hidasi et al., "Session-based recommendations
        with recurrent neural networks" (ICLR 2016).
    """

    def __init__(self, input_dim: int, max_length: int, *, output: int | None = None) -> None:
        super().__init__()
        self.output_dim = output or input_dim
        self.of_event = nn.Linear(input_dim, 3 * self.output_dim)
        self.of_state = nn.Linear(self.output_dim, 3 * self.output_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layer in (self.of_event, self.of_state):
            nn.init.uniform_(layer.weight, -(self.output_dim**-0.5), self.output_dim**-0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, events: Events) -> Tensor:
        """Computes `[B, output_dim]`."""
        x_VG = self._apply_layer(self.of_event, events.e_VD)
        # The longest first, so that the rows of a step are the first ones of the step before
        order_B = torch.argsort(events.lengths_B, descending=True, stable=True)
        place_B = torch.argsort(order_B)
        counts = torch.bincount(events.lengths_B.long(), minlength=1).flip(0).cumsum(0).flip(0)
        # Cut once: the gradient of each step's selection would be as large as all events
        x_VG = x_VG.index_select(0, _by_step(events, place_B))
        h_BH = x_VG.new_zeros(len(order_B), self.output_dim)
        for x_NG in x_VG.split(counts[1:].tolist()):
            rows = len(x_NG)
            new_NH = self._step(x_NG, h_BH[:rows])
            h_BH = torch.cat([new_NH, h_BH[rows:]])
        return h_BH.index_select(0, place_B)

    def _step(self, x_NG: Tensor, h_NH: Tensor) -> Tensor:
        reset, update, new = x_NG.chunk(3, dim=1)
        h_reset, h_update, h_new = self._apply_layer(self.of_state, h_NH).chunk(3, dim=1)
        reset_NH, update_NH = self._gate(reset + h_reset), self._gate(update + h_update)
        new_NH = torch.tanh(new + reset_NH * h_new)
        return new_NH + update_NH * (h_NH - new_NH)

    def _gate(self, x: Tensor) -> Tensor:
        return x.sigmoid() if self.training else stable_sigmoid(x)

    def _apply_layer(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return layer(x) if self.training else stable_linear(x, layer.weight, layer.bias)


def _by_step(events: Events, place_B: Tensor) -> Tensor:
    """Events in the order in which they are read: all rows' first ones, then the second ones.

    Args:
        events: Of B rows.
        place_B: Of each row among those of a step.

    Example:
        >>> events = Events(torch.zeros(3, 4), torch.tensor([1, 2]))
        >>> _by_step(events, torch.tensor([1, 0])).tolist()
        [1, 0, 2]
    """
    row_V = events.row_V
    places_V = torch.arange(len(row_V), device=row_V.device)
    step_V = places_V - events.starts_B.index_select(0, row_V)
    return torch.argsort(step_V * len(place_B) + place_B.index_select(0, row_V))
