"""`TransformerEncoder`: attention of the target, and of events, to events."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.batch_invariant import stable_linear
from mmoe.models.sequences.attention import attend_all, attend_target
from mmoe.models.sequences.events import Events


class TransformerEncoder(nn.Module):
    """Transformer over a row's events and, behind them, the target, whose output is read.

    A block is `x ← x + attention(norm(x))`, `x ← x + mlp(norm(x))`. As the target's output alone is
    read, the last block computes no other: with one block each event is attended to once. Blocks
    below it compute all, by groups of rows that have as many events: nothing is padded.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width D of an event and of the target.
        max_length: Most events of a row.
        layers: Number of blocks.
        heads: Of attention.
        dropout: After attention and MLP, while training.

    Raises:
        ValueError: The heads do not divide the width.

    Example:
        >>> import torch
        >>> from mmoe.models.sequences.events import Events
        >>> events = Events(torch.ones(3, 4), torch.tensor([2, 1]), torch.ones(2, 4))
        >>> TransformerEncoder(4, 10)(events).shape
        torch.Size([2, 4])

    Source: Chen et al., "Behavior sequence transformer for e-commerce recommendation in Alibaba"
        (DLP-KDD 2019), section 2.2, which found one block best; it reads all outputs, here it is
        the target's. Norms come first, as in Xiong et al., "On layer normalization in the
        transformer architecture" (ICML 2020).
    """

    def __init__(
        self,
        input_dim: int,
        max_length: int,
        *,
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if input_dim % heads:
            raise ValueError(
                f"encoder transformer: heads is {heads}, which does not divide the width of an "
                f"event, {input_dim} (the sum of its columns' dims); choose another number"
            )
        self.output_dim = input_dim
        # Of events by their place from the end; the last row is the target's
        self.places = nn.Parameter(torch.empty(max_length + 1, input_dim))
        self.blocks = nn.ModuleList(_Block(input_dim, heads, dropout) for _ in range(layers))
        nn.init.normal_(self.places, std=0.02)

    def forward(self, events: Events) -> Tensor:
        """Computes `[B, output_dim]`."""
        target_BD = events.target_BD
        assert target_BD is not None, "the config has seen to it that there is a target"
        e_VD = events.e_VD + self.places.index_select(0, events.from_end_V)
        target_BD = target_BD + self.places[-1]
        *lower, last = self.blocks
        for block in lower:
            assert isinstance(block, _Block)
            e_VD, target_BD = block.of_all(Events(e_VD, events.lengths_B, target_BD))
        assert isinstance(last, _Block)
        return last.of_target(Events(e_VD, events.lengths_B, target_BD))


class _Block(nn.Module):
    """Attention and an MLP of four times the width."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (self.query, self.key, self.value, self.out, self.wide, self.narrow):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        # Like attends to like from the start: products of drawn weights would have to find that out
        with torch.no_grad():
            self.query.weight.copy_(self.key.weight)

    def of_target(self, events: Events) -> Tensor:
        """Computes the target's output alone."""
        assert events.target_BD is not None
        e_VD, t_BD = self.norm(events.e_VD), self.norm(events.target_BD)
        found_BD = attend_target(
            self._apply_layer(self.query, t_BD),
            (self._apply_layer(self.key, e_VD), self._apply_layer(self.key, t_BD)),
            (self._apply_layer(self.value, e_VD), self._apply_layer(self.value, t_BD)),
            events,
            self.heads,
        )
        return self._finished(events.target_BD, found_BD)

    def of_all(self, events: Events) -> tuple[Tensor, Tensor]:
        """Computes the outputs of events and targets."""
        assert events.target_BD is not None
        events_first = torch.cat([events.e_VD, events.target_BD])
        x_ND = self.norm(events_first)
        projected = [self._apply_layer(one, x_ND) for one in (self.query, self.key, self.value)]
        found_ND = attend_all(projected, events, self.heads, training=self.training)
        count = len(events.e_VD)
        out_ND = self._finished(events_first, found_ND)
        return out_ND[:count], out_ND[count:]

    def _finished(self, x_ND: Tensor, found_ND: Tensor) -> Tensor:
        x_ND = x_ND + self._drop(self._apply_layer(self.out, found_ND))
        wide_NH = self._apply_layer(self.wide, self.mlp_norm(x_ND)).relu()
        return x_ND + self._drop(self._apply_layer(self.narrow, wide_NH))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def _apply_layer(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return layer(x) if self.training else stable_linear(x, layer.weight, layer.bias)
