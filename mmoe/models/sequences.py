"""Sequences: events of a row, and encoders that make one vector of them."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import SEQUENCE_ENCODERS, FeatureSpec, SequenceSpec
from mmoe.datasets import FeatureEncoder
from mmoe.embeddings import Lookups
from mmoe.mixture import MLP, stable_sigmoid
from mmoe.mixture.axes import Entry, Names, Part
from mmoe.mixture.batch_invariant import apply_linear
from mmoe.ops import TargetAttention, target_attention
from mmoe.ops.row_sums import jagged_sum, sample_of_rows
from mmoe.process_settings import borrowed_generators


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


class SequenceInputs(nn.ModuleDict):
    """Makes columns of x of the events that were looked up, and puts them behind the others.

    Args:
        specs: The sequences.
        features: All that are looked up, in the order of `Lookups`.
        dims: Width of each table.

    Attributes:
        columns: Name and width of each vector that it makes, in their order.
        output_dim: Width of all of them.

    Raises:
        ValueError: An encoder does not go with the width of its events.
    """

    def __init__(
        self,
        specs: Sequence[SequenceSpec],
        features: Sequence[FeatureSpec],
        dims: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.specs = tuple(specs)
        unpooled = [feature.name for feature in features if feature.pooling == "none"]
        pooled = [feature for feature in features if feature.pooling != "none"]
        widths = [dims[feature.table] for feature in pooled]
        starts = dict(zip([f.name for f in pooled], accumulate(widths, initial=0), strict=False))
        width = {feature.name: dims[feature.table] for feature in features}
        self._events = [[unpooled.index(name) for name in spec.events] for spec in specs]
        self._gaps = [None if s.gap is None else unpooled.index(s.gap) for s in specs]
        self._targets = [[(starts[name], width[name]) for name in s.targets] for s in specs]
        self.columns: list[tuple[str, int]] = []
        for spec in specs:
            own = sum(width[name] for name in spec.events)
            make = SEQUENCE_ENCODERS.implementation(spec.encoder)
            encoder = make(own, spec.max_length, **spec.encoder.keywords())
            self[_key(spec.name)] = encoder
            self.columns.append((f"{spec.name} encoded", encoder.output_dim))
            self.columns += [(f"{spec.name} latest {n + 1}", own) for n in range(spec.unpooled)]
        self.output_dim = sum(columns for _, columns in self.columns)

    def forward(self, lookups: Lookups) -> Tensor:
        """Computes x: pooled embeddings, then the encoded sequences, `[B, D + output_dim]`."""
        parts = [lookups.x_BD]
        for number in range(len(self.specs)):
            targets = [lookups.x_BD[:, at : at + width] for at, width in self._targets[number]]
            target_BD = torch.cat(targets, dim=1) if targets else None
            events = self.events_of(number, lookups)._replace(target_BD=target_BD)
            parts += self.encode(number, events)
        return torch.cat(parts, dim=1)

    def named_parts(self, names: Names) -> list[Part]:
        """Says which sequence each encoder is of."""
        specs = self.specs
        return [Part(_key(spec.name), (Entry("features", spec.name),), names) for spec in specs]

    def encode(self, number: int, events: Events) -> list[Tensor]:
        """Makes the columns of one sequence, as wide as `columns` says."""
        spec = self.specs[number]
        found = [self[_key(spec.name)](events).to(events.e_VD.dtype)]
        if spec.unpooled:
            found.append(events.latest(spec.unpooled))
        return found

    def events_of(self, number: int, lookups: Lookups) -> Events:
        """Returns the events of one sequence, without its targets."""
        found = [lookups.events[s] for s in self._events[number]]
        e_VD = found[0] if len(found) == 1 else torch.cat(found, dim=1)
        gap = self._gaps[number]
        if gap is not None:
            e_VD = e_VD + lookups.events[gap]
        lengths_SB: Any = lookups.lengths_SB
        return Events(e_VD, lengths_SB[self._events[number][0]])


def _key(name: str) -> str:
    """A name that no method of a module has."""
    return f"{name}_encoder"


def build_sequences(encoder: FeatureEncoder) -> SequenceInputs:
    """Makes the encoders of a run's sequences."""
    dims = {table.name: table.dim for table in encoder.tables}
    features = [*encoder.categorical, *encoder.lists]
    return SequenceInputs(encoder.sequences, features, dims)


def sequence_columns(encoder: FeatureEncoder) -> list[tuple[str, int]]:
    """Names the vectors that sequences become, in their order, each with its width."""
    if not encoder.sequences:
        return []
    with borrowed_generators():  # made to be asked for names alone
        return build_sequences(encoder).columns


class DINEncoder(nn.Module):
    """Sum of a row's events, each weighed by an MLP that sees it beside the target.

    `out = Σ_v a(e_v, q) e_v`, `a = mlp([ē, q̄, ē − q̄, ē ⊙ q̄])`, with `x̄ = x / √(mean x² + 10⁻⁶)`.
    The weights do not sum to 1 unless `softmax` is set: their sum says how strong the interest is.
    The first layer's product with ē, q̄ and their difference is taken apart, since it is linear:
    `A ē + C (ē ⊙ q̄)` is computed for each event, `B q̄` once for each row. There is no padding.
    All of it is one operator, `mmoe.ops.target_attention`, in fp32 also under autocast.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width D of an event and of the target.
        max_length: Most events of a row; of no use here.
        hidden: Widths of the MLP, 1 to 8, ReLU after each.
        softmax: Weights that sum to 1.

    Example:
        >>> import torch
        >>> events = Events(torch.ones(3, 4), torch.tensor([2, 1]), torch.ones(2, 4))
        >>> DINEncoder(4, 10)(events).shape
        torch.Size([2, 4])

    Source: Zhou et al., "Deep interest network for click-through rate prediction" (KDD 2018),
        section 4.3 and equation 3, with ReLU instead of Dice, and with e and q scaled before the
        MLP reads them. Rows of tables begin near zero: without it two epochs over the 60,000 rows
        of `benchmarks.inputs` end 0.066 above the oracle's log-loss, where the mean of the events
        does, with it 0.043. Its mini-batch aware regularisation
        (section 5.1), which decays the rows of a batch alone, is
        `training.embedding_optimizer.weight_decay`.
    """

    def __init__(
        self,
        input_dim: int,
        max_length: int,
        *,
        hidden: Sequence[int] = (36,),
        softmax: bool = False,
    ) -> None:
        super().__init__()
        self.output_dim, self.softmax = input_dim, softmax
        self.of_event = nn.Linear(2 * input_dim, hidden[0], bias=False)
        self.of_target = nn.Linear(input_dim, hidden[0])
        self.rest = MLP(hidden[0], hidden[1:])
        self.weight = nn.Linear(hidden[-1], 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layer in (self.of_event, self.of_target):
            # As one layer that reads all four
            nn.init.normal_(layer.weight, std=(2 / (4 * self.output_dim)) ** 0.5)
        nn.init.zeros_(self.of_target.bias)
        self.rest.reset_parameters()
        nn.init.kaiming_normal_(self.weight.weight, nonlinearity="linear")
        nn.init.zeros_(self.weight.bias)

    def forward(self, events: Events) -> Tensor:
        """Computes `[B, output_dim]`."""
        return self._attend(events).out_BD

    def weights(self, events: Events) -> Tensor:
        """Computes `a(e_v, q)`, how much each event counts: to look inside.

        Without `softmax` they may be negative, and only compare within one model: another scale of
        the events undoes another scale of the weights.

        Args:
            events: V events of B rows, with targets.

        Returns:
            `[V]`, float32 or float64.

        Example:
            >>> import torch
            >>> events = Events(torch.ones(3, 4), torch.tensor([2, 1]), torch.ones(2, 4))
            >>> DINEncoder(4, 10, softmax=True).eval().weights(events).tolist()
            [0.5, 0.5, 1.0]
        """
        return self._attend(events).weights_V

    def _attend(self, events: Events) -> TargetAttention:
        e_VD, q_BD = events.e_VD, events.target_BD
        assert q_BD is not None, "the config has seen to it that there is a target"
        q_BD = _of_unit_size(q_BD)
        return target_attention(
            e_VD,
            events.lengths_B,
            q_BD,
            self.of_event.weight.t(),
            apply_linear(self.of_target, q_BD),
            self.weight.weight[0],
            self.weight.bias,
            deeper=[_of_layer(layer) for layer in self.rest.layers],
            softmax=self.softmax,
        )


def _of_layer(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    return layer.weight.t(), layer.bias


def _of_unit_size(x_ND: Tensor) -> Tensor:
    """Scales rows to a mean square of 1; those near zero less, which keeps their gradients small.

    Rows of tables begin near zero, and products of two of them are nothing that a unit could see.
    """
    return F.rms_norm(x_ND, (x_ND.shape[1],), eps=1e-6)


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
        x_VG = apply_linear(self.of_event, events.e_VD)
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
        h_reset, h_update, h_new = apply_linear(self.of_state, h_NH).chunk(3, dim=1)
        reset_NH, update_NH = self._gate(reset + h_reset), self._gate(update + h_update)
        new_NH = torch.tanh(new + reset_NH * h_new)
        return new_NH + update_NH * (h_NH - new_NH)

    def _gate(self, x: Tensor) -> Tensor:
        return x.sigmoid() if self.training else stable_sigmoid(x)


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
            apply_linear(self.query, t_BD),
            (apply_linear(self.key, e_VD), apply_linear(self.key, t_BD)),
            (apply_linear(self.value, e_VD), apply_linear(self.value, t_BD)),
            events,
            self.heads,
        )
        return self._finished(events.target_BD, found_BD)

    def of_all(self, events: Events) -> tuple[Tensor, Tensor]:
        """Computes the outputs of events and targets."""
        assert events.target_BD is not None
        events_first = torch.cat([events.e_VD, events.target_BD])
        x_ND = self.norm(events_first)
        projected = [apply_linear(one, x_ND) for one in (self.query, self.key, self.value)]
        found_ND = _attend_all(projected, events, self.heads, training=self.training)
        count = len(events.e_VD)
        out_ND = self._finished(events_first, found_ND)
        return out_ND[:count], out_ND[count:]

    def _finished(self, x_ND: Tensor, found_ND: Tensor) -> Tensor:
        x_ND = x_ND + self._drop(apply_linear(self.out, found_ND))
        wide_NH = apply_linear(self.wide, self.mlp_norm(x_ND)).relu()
        return x_ND + self._drop(apply_linear(self.narrow, wide_NH))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x
