"""`MLP`, the body of towers, and `MLPExperts`, a pool of equal ones: a weight tensor per layer."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe import ops
from mmoe.mixture.batch_invariant import activate, stable_linear
from mmoe.mixture.experts.contract import Pool, Record, stacked_part
from mmoe.mixture.experts.norm import ExpertBatchNorm, ExpertLayerNorm, ExpertNorm
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.pytrees import cast_for_autocast, gather_rows
from mmoe.mixture.traits import PoolTraits, SharedWork
from mmoe.ops._checks import for_autocast

Activation = Literal["relu", "gelu", "silu"]
ExpertActivation = Literal["relu", "gelu", "silu", "swiglu"]
# Of the last layer; None: it has none
OutputActivation = Literal["same", "relu", "gelu", "silu", "swiglu"] | None


class MLP(nn.Module):
    """Linear layers, each followed by an activation and dropout: `x ← drop(act(W x + b))`.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width of the input.
        hidden: Width of every layer; the last one is the output's. Empty: the input comes back.
        activation: `relu`, `gelu` or `silu`.
        dropout: Probability that a unit is zeroed while training.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLP
        >>> MLP(10, [32, 16])(torch.zeros(4, 10)).shape
        torch.Size([4, 16])

    Source: Weights start as in He et al., "Delving deep into rectifiers" (ICCV 2015), equation 10:
        normal with variance 2 / fan-in; biases start at zero. GELU and SiLU are close enough to
        ReLU to share it.
    """

    layers: Any  # an `nn.ModuleList` of `nn.Linear`

    def __init__(
        self,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        words = {"activation": (activation, get_args(Activation))}
        check_layers(input_dim, hidden, words, {"dropout": dropout})
        widths = [input_dim, *hidden]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.activation: Activation = activation
        self.dropout = dropout
        self.input_dim = input_dim
        self.output_dim = widths[-1]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns the axes of its tensors: the first layer's columns are inputs."""
        return {"layers.0.weight": {1: "inputs"}}

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., input_dim]` to `[..., output_dim]`."""
        return self.after_first(self._linear(0, x)) if len(self.layers) else x

    def after_first(self, y: Tensor) -> Tensor:
        """Goes on from what the first layer's matrix gave, of an MLP that has one; it may be lost.

        Args:
            y: `[..., widths[0]]`, changed in place.
        """
        for layer in range(len(self.layers)):
            x = _activate(y, self.activation, self.training)
            if self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            if layer + 1 == len(self.layers):
                return x
            y = self._linear(layer + 1, x)
        raise AssertionError("it has a layer")

    def _linear(self, layer: int, x: Tensor) -> Tensor:
        own = self.layers[layer]
        # Scores alone must not depend on the batch beside a row
        return own(x) if self.training else stable_linear(x, own.weight, own.bias)

    def extra_repr(self) -> str:
        """Returns the settings that `print` shows."""
        return f"activation={self.activation}, dropout={self.dropout}"


def _activate(x: Tensor, activation: Activation, training: bool) -> Tensor:
    # In place where the gradient allows it: x is our own product, and a second buffer of its size
    # costs more than the ReLU itself.
    if activation == "relu":
        return F.relu(x, inplace=True)
    return activate(x, activation, training=training)


def check_layers(
    input_dim: int,
    hidden: Sequence[int],
    words: Mapping[str, tuple[str | None, Sequence[str | None]]],
    dropouts: Mapping[str, float],
) -> None:
    """Refuses settings out of range, by their names; `words` come with those that are known."""
    if input_dim < 1:
        raise ValueError(f"input_dim: expected a width of 1 or more, got {input_dim}")
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden: expected widths of 1 or more, got {list(hidden)}")
    for name, (value, known) in words.items():
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, known))}, got {value!r}")
    for name, dropout in dropouts.items():
        if not 0 <= dropout < 1:
            raise ValueError(f"{name}: expected a probability in [0, 1), got {dropout}")


_STEPS = 1 << 15  # of probability that 15 random bits tell apart


def fast_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Returns x with entries zeroed at random, and the others over `1 − p`.

    `F.dropout` draws one number in double precision an entry on a CPU, and takes a fifth to a third
    of a step of training there; this takes a quarter of that.

    Args:
        x: Any shape; float.
        probability: p, in steps of 1/32,768 on a CPU.
        training: False: x as it is.

    Example:
        >>> import torch
        >>> y = fast_dropout(torch.ones(1000), 0.25, training=True)
        >>> sorted(set(y.tolist())) == [0.0, torch.tensor(1 / 0.75).item()]
        True
    """
    if not (training and probability):
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_()  # 63 bits each
    # Seen as int16 they are four numbers, one of which lacks a bit: 15 bits of each are used
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape).bitwise_and_(_STEPS - 1)
    kept = bits >= min(round(probability * _STEPS), _STEPS - 1)  # the most that 16 bits hold
    # The mask takes the scale along, so that x is read and written once
    return x * kept.to(x.dtype).mul_(1 / (1 - probability))


class MLPExperts(Pool):
    """Pool of E equal MLPs: each layer is `x ← drop(act(norm(x W[e] + b[e])))`.

    Bias and activation are part of the product (without a norm), for all experts at once; nothing
    is read on the host, so it runs inside `torch.compile`, in `torch.export` and on a GPU without
    waiting. On the CPU a row's result depends on that row alone: not on the other rows, its place
    or the number of threads (in training with norm `batch` it does depend on its expert's rows).

    Args:
        num_experts: E.
        input_dim: D.
        hidden: Width of every layer; the last one is the output's. Empty: rows come back.
        activation: `relu`, `gelu` (exact), `silu`, or `swiglu`: the product has twice the layer's
            width, `[a, c] = x W[e] + b[e]`, and the layer gives `silu(a) · c`.
        output_activation: The last layer's; `same` as `activation`, or another one; None: the last
            layer is `drop(norm(x W[e] + b[e]))`, as in a Transformer's feed-forward part.
        norm: None, `layer` (layer normalisation) or `batch` (batch normalisation over each
            expert's own rows, HoME's expert normalisation; there with `silu`).
        dropout: Probability that a unit is zeroed while training.
        output_dropout: The last layer's; None: as `dropout`.
        bias: False: layers are `x W[e]`, without `b`, as in Llama.

    Raises:
        ValueError: A setting out of range, with its name.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts
        >>> pool = MLPExperts(4, 10, [32, 16], activation="gelu")
        >>> [tuple(weight.shape) for weight in pool.weights]
        [(4, 10, 32), (4, 32, 16)]
        >>> len(pool.dense([torch.zeros(3, 10)])), pool.output_dim
        (4, 16)
        >>> pool.grouped(torch.zeros(3, 10), torch.tensor([0, 2, 2, 2, 3]).int()).shape
        torch.Size([3, 16])

    Source: Shazeer, "GLU variants improve transformer" (arXiv 2002.05202), equation 5, for SwiGLU;
        Wang et al., "HoME" (arXiv 2408.05430), for norm `batch`. Weights start as in He et al.,
        "Delving deep into rectifiers" (ICCV 2015), equation 10; biases at zero.
    """

    number_V: Tensor | None  # theirs among all slices

    def __init__(
        self,
        num_experts: int,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: ExpertActivation = "relu",
        output_activation: OutputActivation = "same",
        norm: ExpertNorm | None = None,
        dropout: float = 0.0,
        output_dropout: float | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        last_dropout = dropout if output_dropout is None else output_dropout
        if num_experts < 1:
            raise ValueError(f"num_experts: expected 1 or more, got {num_experts}")
        known = get_args(ExpertActivation)
        words = {
            "activation": (activation, known),
            "output_activation": (output_activation, (None, "same", *known)),
            "norm": (norm, (None, *get_args(ExpertNorm))),
        }
        dropouts = {"dropout": dropout, "output_dropout": last_dropout}
        check_layers(input_dim, hidden, words, dropouts)
        last = activation if output_activation == "same" else output_activation
        # Of each layer
        self.activations = [*([activation] * (len(hidden) - 1)), last] if hidden else []
        widths = [input_dim, *hidden]
        products = [
            width * (2 if act == "swiglu" else 1)
            for width, act in zip(hidden, self.activations, strict=True)
        ]
        self.weights = nn.ParameterList(
            torch.empty(num_experts, before, after)
            for before, after in zip(widths, products, strict=False)
        )
        biased = products if bias else []
        self.biases = nn.ParameterList(torch.empty(num_experts, after) for after in biased)
        kind = {None: None, "layer": ExpertLayerNorm, "batch": ExpertBatchNorm}[norm]
        self.norms = nn.ModuleList(kind(num_experts, width) for width in products if kind)
        self.num_experts, self.input_dim = num_experts, input_dim
        self.output_dim: int | None = widths[-1]
        self.activation: ExpertActivation = activation
        self.output_activation: OutputActivation = output_activation
        self.norm: ExpertNorm | None = norm
        self.dropout, self.output_dropout = dropout, output_dropout
        # Of each layer
        self.dropouts = [*([dropout] * (len(hidden) - 1)), last_dropout] if hidden else []
        # Activations that the layers' products apply themselves
        # A norm stands between product and activation, and SwiGLU multiplies halves of a product
        left = ("swiglu", None)
        self.fused: list[ops.FusedActivation] = [
            "none" if norm or act in left else act for act in self.activations
        ]
        self.register_buffer("number_V", None, persistent=False)
        self.reset_parameters()

    def part(self, experts: Sequence[int]) -> "MLPExperts":
        """Copies some of the experts into a pool of their own, such as those of one rank.

        No random number is drawn. So ranks that make the whole pool from one seed, and then each
        its part, start with the parameters of one process.

        Args:
            experts: Their numbers, in any order; none: a pool of no experts.

        Raises:
            ValueError: A number outside [0, E).

        Example:
            >>> import torch
            >>> from mmoe.mixture import MLPExperts
            >>> pool = MLPExperts(4, 8, [2])
            >>> part = pool.part([3, 1])
            >>> torch.equal(part.weights[0], pool.weights[0][[3, 1]])
            True
        """
        return stacked_part(self, experts)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are: all have the experts in front."""
        return {**{name: {0: "experts"} for name in self.state_dict()},
                "weights.0": {0: "experts", 1: "inputs"}}  # fmt: skip

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layer, weight in enumerate(self.weights):
            # The fan-in of the whole expert, of whose hidden units a slice has an r-th
            inputs = weight.shape[1] * (self.slices if layer else 1)
            nn.init.normal_(weight, std=math.sqrt(2 / inputs))
        for bias in self.biases:
            nn.init.zeros_(bias)

    def __len__(self) -> int:
        """E."""
        return self.num_experts

    @property
    def traits(self) -> PoolTraits:
        """Norm `batch` looks at the other rows of an expert; only ReLU's units can be 0 for all."""
        return PoolTraits(
            static_shapes=True,
            uses_batch=self.norm == "batch",
            has_dead_units="relu" in self.activations,
            joinable=True,
        )

    def dense(self, inputs: Sequence[Tensor], record: Record | None = None) -> list[Tensor]:
        """Runs every expert on all rows.

        Args:
            inputs: One tensor `x_BD` for all experts, or one per expert.
            record: Gets what every ReLU layer gave appended.

        Returns:
            E tensors `y_BO`.
        """
        if len(inputs) not in (1, self.num_experts):
            raise self.wrong_count(inputs)
        if not self.num_experts:
            return []
        # Without layers rows may be tuples or dicts
        cast = for_autocast if self.weights else cast_for_autocast
        x = self._dense_from(0, [cast(tensor) for tensor in inputs], record)
        # Without layers the one input is what every expert gives
        return x if len(x) == self.num_experts else x * self.num_experts

    def of_requests(self, rows: Inputs, record: Record | None = None) -> list[Tensor]:
        """Runs every expert on all rows; the first layer's part of the request once a request.

        Args:
            rows: That share columns with others of their request.
            record: As for `dense`.

        Returns:
            E tensors `y_BO`, those of `dense` but for rounding; where rows are exact, to the bit.
        """
        if rows.exact or not self.weights or not self.num_experts:
            return self.dense([rows.whole], record)
        if record is None and (products := self._products(0)) is not None:
            return rows.layers(*products)
        y = rows.layer(*self._layer(0), self.fused[0])
        return self._dense_from(1, self._end_of_dense(0, y, record), record)

    def shared_work(self, rows: Inputs) -> SharedWork:
        """The first layer's part of the request."""
        if rows.exact or not self.weights:
            return SharedWork()
        return SharedWork(0, rows.shared_width * self.weights[0].shape[2])

    def grouped(self, rows: Tensor, offsets_E1: Tensor, record: Record | None = None) -> Tensor:
        """Runs each expert on its own rows: expert e takes rows `offsets[e] : offsets[e + 1]`.

        Args:
            rows: `x_RD`, those of one expert next to each other.
            offsets_E1: First row of each expert and, last, the number of rows; int32.
            record: Gets what every ReLU layer gave appended.

        Returns:
            `y_RO`, row for row; what comes past the last offset means nothing and is not to be
            read.
        """
        if not self.num_experts:
            return self.no_rows(rows)
        cast = for_autocast if self.weights else cast_for_autocast
        return self._grouped_from(0, cast(rows), offsets_E1, record)

    def gathered(self, x_BD: Tensor, plan: ops.RoutePlan, record: Record | None = None) -> Tensor:
        """Runs each expert on the rows that a plan names; a GPU reads the first layer's in place.

        Args:
            x_BD: A row per sample.
            plan: Which of them each pair of a sample and an expert reads.
            record: Gets what every ReLU layer gave appended.

        Returns:
            What `grouped(permute(x_BD, plan), plan.offsets_E1)` does.
        """
        # Where `grouped` alone was replaced, as by `register_fsdp_forward_method`, it is called
        if "grouped" in vars(self) and "gathered" not in vars(self):
            return super().gathered(x_BD, plan, record)
        if not self.weights:
            return gather_rows(cast_for_autocast(x_BD), plan)
        x_BD = for_autocast(x_BD)
        weight_EDH, bias_EH = self._layer(0)
        y_PH = ops.gathered_mm(x_BD, plan, weight_EDH, bias_EH, self.fused[0])
        x_PH = self._end_of_layer(0, y_PH, plan.offsets_E1, record)
        return self._grouped_from(1, x_PH, plan.offsets_E1, record)

    def extra_repr(self) -> str:
        """Returns the settings that `print` shows."""
        widths = "-".join(str(weight.shape[2]) for weight in self.weights)
        own = self.output_activation
        last = "" if own == "same" else f" (last layer: {own or 'none'})"
        bias = "" if self.biases or not self.weights else ", bias=False"
        return (
            f"experts={self.num_experts}, products={self.input_dim}-{widths}, "
            f"activation={self.activation}{last}, norm={self.norm}, dropout={self.dropout}{bias}"
        )

    def _activate(self, layer: int, y: Tensor) -> Tensor:
        """Applies what the layer's product left out: activation and dropout."""
        activation = self.activations[layer]
        if activation == "swiglu":
            gate, value = y.chunk(2, dim=1)
            return activate(gate, "silu", training=self.training) * value
        if activation is None or not self.norms:  # else the product applied it (`fused`)
            return y
        return activate(y, activation, training=self.training)

    def _dense_from(self, first: int, x: list[Tensor], record: Record | None) -> list[Tensor]:
        """The layers from `first` on, on all rows."""
        if record is None and (products := self._products(first)) is not None:
            # In one call: what scores keeps a block of rows in the cache from layer to layer
            return ops.dense_mlp(x, *products)
        for layer in range(first, len(self.weights)):
            weight_EDH, bias_EH = self._layer(layer)
            y = ops.dense_mm(x, weight_EDH, bias_EH, self.fused[layer])
            x = self._end_of_dense(layer, y, record)
        return x

    def _products(
        self, first: int
    ) -> tuple[list[Tensor], list[Tensor], ops.FusedActivation, ops.FusedActivation] | None:
        """The layers from `first` on, as `ops.dense_mlp` takes them.

        None: there are none, or something follows products that these do not apply themselves.
        """
        drops = self.training and any(self.dropouts)
        if drops or self.norms or "swiglu" in self.activations or first >= len(self.weights):
            return None
        pairs = [self._layer(layer) for layer in range(first, len(self.weights))]
        biases = [bias_EH for _, bias_EH in pairs if bias_EH is not None]
        return [weight_EDH for weight_EDH, _ in pairs], biases, self.fused[0], self.fused[-1]

    def _end_of_dense(self, layer: int, y: Sequence[Tensor], record: Record | None) -> list[Tensor]:
        """Finishes a dense layer after its products."""
        if self.norms:
            y = self._norm_dense(layer, y)
        y = [self._activate(layer, part) for part in y]
        if record is not None and self.activations[layer] == "relu":
            record.append(y)
        return [self._drop(layer, part) for part in y]

    def _grouped_from(
        self, first: int, x_PD: Tensor, offsets_E1: Tensor, record: Record | None
    ) -> Tensor:
        """The layers from `first` on, on each expert's own rows."""
        for layer in range(first, len(self.weights)):
            weight_EDH, bias_EH = self._layer(layer)
            y_PH = ops.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, self.fused[layer])
            x_PD = self._end_of_layer(layer, y_PH, offsets_E1, record)
        return x_PD

    def _end_of_layer(
        self, layer: int, y_PH: Tensor, offsets_E1: Tensor, record: Record | None
    ) -> Tensor:
        """Finishes a grouped layer after its product."""
        if self.norms:
            y_PH = self.norms[layer](y_PH, offsets_E1)
        y_PH = self._activate(layer, y_PH)
        if record is not None and self.activations[layer] == "relu":
            record.append(y_PH)
        return self._drop(layer, y_PH)

    def _layer(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """A layer's weight and bias."""
        bias_EH = self.biases[layer] if self.biases else None
        if layer and bias_EH is not None and self.number_V is not None:
            # Once for all slices of an expert
            bias_EH = bias_EH * (self.number_V % self.slices == 0).unsqueeze(1)
        return self.weights[layer], bias_EH

    def _drop(self, layer: int, y: Tensor) -> Tensor:
        drops = self.training and self.dropouts[layer]
        return fast_dropout(y, self.dropouts[layer], training=True) if drops else y

    def _norm_dense(self, layer: int, y: Sequence[Tensor]) -> list[Tensor]:
        """The grouped norm, where every expert got all rows."""
        # As if every row were routed to every expert: the same sums as in grouped execution
        rows = y[0].shape[0]
        offsets_E1 = rows * torch.arange(len(y) + 1, dtype=torch.int32, device=y[0].device)
        joined = self.norms[layer](torch.cat(list(y)), offsets_E1)
        return list(joined.view(len(y), rows, joined.shape[1]).unbind(0))
