"""`TransformerEncoder`: attention of the target, and of events, to events."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture import stable_linear
from mmoe.models.sequences.events import Events
from mmoe.ops.row_sums import jagged_sum


def _jagged_softmax(scores_VH: Tensor, events: Events, own_BH: Tensor | None = None) -> Tensor:
    """Weights that sum to 1 over a row's events, or with `own_BH` to less.

    `w_v = exp(s_v) / (exp(own) + Σ_u exp(s_u))`, for each of H columns by itself; own is the score
    of something else that each row has.
    """
    row_V = events.row_V
    # Subtracted for range alone: the result does not depend on it
    most_BH = _most(scores_VH.detach(), events, None if own_BH is None else own_BH.detach())
    exp_VH = (scores_VH - most_BH.index_select(0, row_V)).exp()
    sums_BH = jagged_sum(exp_VH, events.lengths_B)
    if own_BH is not None:
        sums_BH = sums_BH + (own_BH - most_BH).exp()
    return exp_VH / sums_BH.index_select(0, row_V)


def _most(scores_VH: Tensor, events: Events, own_BH: Tensor | None) -> Tensor:
    shape = len(events.lengths_B), scores_VH.shape[1]
    least_BH = scores_VH.new_full(shape, -torch.inf) if own_BH is None else own_BH.clone()
    index_VH = events.row_V[:, None].expand_as(scores_VH)
    return least_BH.scatter_reduce(0, index_VH, scores_VH, "amax")


_NUMBERS = 1 << 22  # products that evaluation holds at a time, 16 MiB in fp32


def attend_target(
    q_BD: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    events: Events,
    heads: int,
) -> Tensor:
    """Computes softmax attention of each row's target to its events and itself, `[B, D]`.

    Args:
        q_BD: Queries of the targets.
        keys: Of the events [V, D], and of the targets [B, D].
        values: Likewise.
        events: How many each row has.
        heads: H, which divide D.
    """
    row_V = events.row_V
    scale = (q_BD.shape[1] // heads) ** -0.5
    q_BHK, k_VHK, k_BHK, v_VHK, v_BHK = (
        _heads(_wide(x_ND), heads) for x_ND in (q_BD, *keys, *values)
    )
    scores_VH = (q_BHK.index_select(0, row_V) * k_VHK).sum(-1) * scale
    own_BH = (q_BHK * k_BHK).sum(-1) * scale
    w_VH = _jagged_softmax(scores_VH, events, own_BH)
    of_events_BD = jagged_sum((w_VH[:, :, None] * v_VHK).flatten(1), events.lengths_B)
    own_w_BH = 1 - jagged_sum(w_VH, events.lengths_B)
    found_BD = of_events_BD + (own_w_BH[:, :, None] * v_BHK).flatten(1)
    return found_BD.to(q_BD.dtype)


def _attend_all(
    projected: Sequence[Tensor], events: Events, heads: int, *, training: bool
) -> Tensor:
    """Softmax attention of all events and the target of a row to one another.

    `projected` are queries, keys and values, `[V + B, D]` each: events first, then targets. Rows
    are taken in groups that have as many events; in evaluation by sums whose bits depend on a row
    alone.
    """
    lengths_B, starts_B = events.lengths_B.long(), events.starts_B
    count = len(events.e_VD)
    places, found = [], []
    for length in torch.unique(lengths_B).tolist():
        rows_N = (lengths_B == length).nonzero()[:, 0]
        steps_L = torch.arange(length, device=rows_N.device)
        own_NL = torch.cat([starts_B[rows_N][:, None] + steps_L, (rows_N + count)[:, None]], dim=1)
        q, k, v = (
            x_ND.index_select(0, own_NL.flatten()).view(*own_NL.shape, heads, -1).transpose(1, 2)
            for x_ND in projected
        )
        out = F.scaled_dot_product_attention(q, k, v) if training else _stable_attention(q, k, v)
        places.append(own_NL.flatten())
        found.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
    if not found:
        return projected[0]
    return torch.cat(found).index_select(0, torch.argsort(torch.cat(places)))


def _stable_attention(q_NHLK: Tensor, k_NHLK: Tensor, v_NHLK: Tensor) -> Tensor:
    """Products number by number, some rows at a time, instead of by matrices."""
    _, heads, length, width = q_NHLK.shape
    of_query = heads * length * width
    rows, queries = max(1, _NUMBERS // (of_query * length)), max(1, _NUMBERS // of_query)
    parts = []
    for q_rows, k, v in zip(*(x.split(rows) for x in (q_NHLK, k_NHLK, v_NHLK)), strict=True):
        found = [_attend(q, k, v) for q in q_rows.split(queries, dim=2)]  # one, unless L is large
        parts.append(torch.cat(found, dim=2))
    return torch.cat(parts) if parts else q_NHLK


def _attend(q_NHQK: Tensor, k_NHLK: Tensor, v_NHLK: Tensor) -> Tensor:
    dtype = q_NHQK.dtype
    q_NHQK, k_NHLK, v_NHLK = _wide(q_NHQK), _wide(k_NHLK), _wide(v_NHLK)
    scores = (q_NHQK[:, :, :, None] * k_NHLK[:, :, None]).sum(-1) * q_NHQK.shape[-1] ** -0.5
    weights = scores.softmax(-1)
    return (weights[..., None] * v_NHLK[:, :, None]).sum(3).to(dtype)


def _wide(x_ND: Tensor) -> Tensor:
    """Returns at least fp32: bfloat16's 8 bits lose the weights of 200 events."""
    return x_ND.to(torch.promote_types(x_ND.dtype, torch.float32))


def _heads(x_ND: Tensor, heads: int) -> Tensor:
    return x_ND.unflatten(1, (heads, -1))


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
        found_ND = _attend_all(projected, events, self.heads, training=self.training)
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
