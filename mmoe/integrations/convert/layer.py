"""`ConvertedMoE`: a mixture in place of a feed-forward part; its experts and its gate."""

import copy
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from mmoe.config import GATES, GateConfig, ModelConfig
from mmoe.integrations.convert.feed_forward import FeedForward, hidden_units
from mmoe.mixture import (
    Capacity,
    ExpertPool,
    GateOutput,
    GateTraits,
    MLPExperts,
    MoE,
    MoEOutput,
    Tree,
    traits_of,
)
from mmoe.mixture.checks import check_gate
from mmoe.mixture.experts.mlp import ExpertActivation
from mmoe.mixture.gates.learned import GateLogits
from mmoe.models.sections import build_gate
from mmoe.process_settings import borrowed_generators

Init = Literal["copy", "split", "fresh"]

# What the pool calls such units that a gate multiplies
_GATED: dict[ExpertActivation, ExpertActivation] = {"silu": "swiglu"}


class FeedForwardExpert(nn.Module):
    """One expert whose activation no pool of equal MLPs has: `second(drop(act(first(x))))`.

    Args:
        part: Its layers, which it takes over.
    """

    def __init__(self, part: FeedForward) -> None:
        super().__init__()
        self.first, self.second, self.gate = part.first, part.second, part.gate
        self.activation = part.activation
        self.dropout = nn.Dropout(part.dropout)
        self.output_dim = part.second.out_features

    def forward(self, x_BD: Tensor) -> Tensor:
        """Computes `y_BO`."""
        h_BH = hidden_units(x_BD, self.first, self.activation, self.gate)
        return self.second(self.dropout(h_BH))


def _expert_width(name: str, width: int, num_experts: int, init: Init, hidden: int | None) -> int:
    """H of one expert; refuses to cut the `width` units of a dense layer into unequal parts."""
    where = name or "module"
    if init != "split":
        return width if hidden is None else hidden
    if hidden is None and width % num_experts:
        fitting = [n for n in range(2, 2 * num_experts) if width % n == 0]
        near = min(fitting, key=lambda n: abs(n - num_experts), default=1)
        raise ValueError(
            f"num_experts: expected a divisor of the {width} hidden units of {where}, which "
            f"init='split' cuts up, got {num_experts}; take {near}, or pass hidden"
        )
    each = width // num_experts if hidden is None else hidden
    if width % each or num_experts % (width // each):
        raise ValueError(
            f"hidden: expected a width that cuts the {width} hidden units of {where} into equal "
            f"parts, whose number divides num_experts ({num_experts}), got {each}; take another, "
            "or init='fresh'"
        )
    return each


def _make_pool(
    part: FeedForward, num_experts: int, init: Init, width: int
) -> MLPExperts | ExpertPool:
    """Makes the experts, in the type and on the device of the part.

    With `split` the mean over all experts is the dense output, and the second bias counts once.
    """
    biased = {layer.bias is not None for layer in part.products}
    known = part.known_activation
    name = known if part.gate is None or known is None else _GATED.get(known)
    if name is None or len(biased) > 1:
        parts = (_expert(part, e, init, width) for e in range(num_experts))
        return ExpertPool([FeedForwardExpert(each).train(part.first.training) for each in parts])
    input_dim, _, output_dim = part.widths
    with torch.device("meta"):  # no number is drawn
        pool = MLPExperts(
            num_experts,
            input_dim,
            [width, output_dim],
            activation=name,
            output_activation=None,
            dropout=part.dropout,
            output_dropout=0.0,
            bias=biased.pop(),
        )
    pool = pool.to(part.first.weight.dtype).to_empty(device=part.first.weight.device)
    for e in range(num_experts):
        _fill(pool, e, _expert(part, e, init, width))
    _require_gradients(pool, part)
    return pool.train(part.first.training)


@torch.no_grad()
def _fill(pool: MLPExperts, e: int, expert: FeedForward) -> None:
    """Fills in one expert's layers."""
    for layer, linears in enumerate(_layers(expert)):
        pool.weights[layer][e].copy_(torch.cat([linear.weight for linear in linears]).T)
        if pool.biases:
            pool.biases[layer][e].copy_(torch.cat([linear.bias for linear in linears]))


def _require_gradients(pool: MLPExperts, part: FeedForward) -> None:
    """Keeps frozen what was frozen."""
    for layer, linears in enumerate(_layers(part)):
        pool.weights[layer].requires_grad_(any(each.weight.requires_grad for each in linears))
        if pool.biases:
            pool.biases[layer].requires_grad_(any(each.bias.requires_grad for each in linears))


def _layers(part: FeedForward) -> list[list[nn.Linear]]:
    """The products of each layer of the pool; a gate's units come first, as SwiGLU has them."""
    return [[part.first] if part.gate is None else [part.gate, part.first], [part.second]]


def _expert(part: FeedForward, e: int, init: Init, width: int) -> FeedForward:
    """The layers of expert e."""
    slices = part.first.out_features // width
    units = slice(e % slices * width, (e % slices + 1) * width) if init == "split" else slice(None)

    def rows(layer: nn.Linear) -> nn.Linear:
        if init == "fresh":
            return _drawn(layer, layer.in_features, width)
        return _linear(
            layer, layer.weight[units], None if layer.bias is None else layer.bias[units]
        )

    def columns(layer: nn.Linear) -> nn.Linear:
        if init == "fresh":
            return _drawn(layer, width, layer.out_features)
        return _linear(
            layer, layer.weight[:, units] * (slices if init == "split" else 1), layer.bias
        )

    return FeedForward(
        rows(part.first),
        columns(part.second),
        copy.deepcopy(part.activation),
        None if part.gate is None else rows(part.gate),
        part.dropout,
    )


def _drawn(like: nn.Linear, before: int, after: int) -> nn.Linear:
    """A new layer, drawn on the CPU, so that a seed gives the same numbers on every device."""
    new = nn.Linear(before, after, like.bias is not None, device="cpu", dtype=torch.float32)
    return _as(new.to(like.weight), like)


def _linear(like: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        new = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    new.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone())
    return _as(new, like)


def _as(new: nn.Linear, like: nn.Linear) -> nn.Linear:
    for mine, its in zip(new.parameters(), like.parameters(), strict=True):
        mine.requires_grad_(its.requires_grad)
    return new


GateMaker = Callable[[int, int, int], nn.Module]
GateSetting = str | Mapping[str, Any] | GateMaker

# Of the logits' weights at the start, as in sparse upcycling: every expert is nearly as likely
_STD = 0.02
_DEFAULT_K = 2
_ROWS = 256


def gate_maker(gate: GateSetting, k: int, num_experts: int) -> GateMaker:
    """Returns what makes the gate of each layer, as `maker(input_dim, num_gates, num_experts)`.

    Args:
        gate: A kind (`top_k`), a section of a config (`{"kind": "top_k", "z_loss": 0.001}`), or
            such a maker itself.
        k: Picks of a row, for gates that take them.
        num_experts: E.

    Raises:
        ValueError: No such kind or key, or a k that the gate cannot pick.
    """
    if isinstance(gate, nn.Module) or not (callable(gate) or isinstance(gate, str | Mapping)):
        raise ValueError(
            "gate: expected a kind as 'top_k', a section as {'kind': 'top_k', …}, or a function "
            "(input_dim, num_gates, num_experts) that makes each layer's, got a "
            f"{type(gate).__name__}"
        )
    if not isinstance(gate, str | Mapping):
        if k != _DEFAULT_K:
            raise ValueError(
                f"k: expected none beside a gate of your own, which picks itself, got {k}"
            )
        return gate
    config = _section({"kind": gate} if isinstance(gate, str) else dict(gate), k, num_experts)
    model = ModelConfig(num_experts=num_experts, gate=config)

    def make(input_dim: int, num_gates: int, num_experts: int) -> nn.Module:
        made = build_gate(model, input_dim, num_gates, num_experts)
        logits = _logits(made)
        if logits is not None:
            nn.init.normal_(logits.weights[-1], std=_STD)
        return made

    return make


def _section(section: dict[str, Any], k: int, num_experts: int) -> GateConfig:
    kind = section.get("kind", "top_k")
    if not GATES.knows(kind):
        near = get_close_matches(str(kind), GATES.names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"gate: {hint}expected one of {', '.join(GATES.names())}, got {kind!r}")
    takes_k = "k" in GATES.config_class(kind).model_fields
    if takes_k and section.setdefault("k", k) != k and k != _DEFAULT_K:
        raise ValueError(f"k: expected {section['k']}, as in gate, got {k}; say it once")
    try:
        config = GATES.validate({"kind": kind, **section})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"gate: {key + ': ' if key else ''}{first['msg']}") from None
    picks = config.picks
    if not takes_k and k not in (_DEFAULT_K, picks):
        number = "all experts" if picks is None else picks
        raise ValueError(f"k: a {kind} gate weighs {number}, got {k}; leave k out")
    if picks is not None and picks > num_experts:
        raise ValueError(
            f"k: expected 1 to {num_experts}, the number of experts, got {picks}; lower k, or "
            "raise num_experts"
        )
    return config


def _make_gate(maker: GateMaker, width: int, num_experts: int, slices: int) -> nn.Module:
    """Makes the gate of one layer, on the CPU, so that a seed gives the same on every device.

    Where S consecutive experts make one dense layer (`slices`), and the gate picks a multiple of S,
    or all, those of one layer start alike, so that a row gets all of it.
    """
    with torch.device("cpu"):
        gate = maker(width, 1, num_experts)
    check_gate(gate)
    logits, k = _logits(gate), traits_of(gate, GateTraits).k
    picks = k if isinstance(k, int) else num_experts
    if slices > 1 and picks % slices == 0 and logits is not None:
        with torch.no_grad():
            last_GED = logits.weights[-1]
            last_GED.copy_(last_GED[:, ::slices].repeat_interleave(slices, dim=1))
    return gate


def _check_sums(gate: nn.Module, width: int, num_experts: int) -> None:
    """Refuses a gate whose weights do not add up to 1: then copies are not the dense network.

    Asked of the gate itself, on rows drawn apart from the caller's generators.
    """
    asked = copy.deepcopy(gate)  # some count what they picked
    generator = torch.Generator().manual_seed(0)
    x_BD = torch.randn(_ROWS, width, generator=generator)
    visible_GE = torch.ones(1, num_experts, dtype=torch.bool)
    for training in (True, False):
        with torch.no_grad(), borrowed_generators():
            decision = cast(GateOutput, asked.train(training)([x_BD], visible_GE))
        sums_B = decision.as_weights(num_experts).sum(-1).flatten()
        wrong = sums_B[int((sums_B - 1).abs().argmax())]
        if abs(float(wrong) - 1) > 1e-5:
            raise ValueError(
                f"gate: init='copy' needs weights that add up to 1, as of top_k and softmax, got "
                f"{type(gate).__name__}, of which a row's add up to {float(wrong):.3g}; take "
                "another gate, or init='fresh'"
            )


def _logits(gate: nn.Module) -> GateLogits | None:
    logits = getattr(gate, "logits", None)
    return logits if isinstance(logits, GateLogits) else None


class ConvertedMoE(MoE):
    """A `MoE` that returns its output alone, as the layer before it did, and keeps its losses.

    What a call's gate adds to the loss, and how many picks a capacity dropped, stay with the layer
    until `auxiliary_losses` takes them or the next call comes.

    Attributes:
        last_losses: Of the last call, by name; empty where there are none, or they were taken.
        last_dropped: Picks that a capacity dropped in the last call, int64; None: nothing can be.
    """

    last_losses: dict[str, Tensor]
    last_dropped: Tensor | None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.last_losses, self.last_dropped = {}, None

    def forward(
        self, x: Tree, return_auxiliary: bool = False, return_statistics: bool = False
    ) -> Tree | MoEOutput:
        """Mixes the experts for every row, as `MoE` does.

        Args:
            x: `[..., D]`.
            return_auxiliary: Return a `MoEOutput` with the gate's losses.
            return_statistics: Also what the gate did.
        """
        result = super().forward(x, return_auxiliary=True, return_statistics=return_statistics)
        assert isinstance(result, MoEOutput)
        if _is_a_call():
            self._keep(result)
        return result if return_auxiliary or return_statistics else result.out

    def _keep(self, result: MoEOutput) -> None:
        # Asked before anything is set, so that a program that has no losses sets nothing
        if result.auxiliary_losses or self.last_losses:
            self.last_losses = dict(result.auxiliary_losses)
        if result.dropped is not None or self.last_dropped is not None:
            self.last_dropped = result.dropped

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the losses, whose history cannot be copied."""
        return self.__dict__ | {"last_losses": {}, "last_dropped": None}

    def extra_repr(self) -> str:
        """Returns how many parameters it has, and how many of them one row uses."""
        counts = parameter_counts(self)
        return f"parameters={counts.total}, active={counts.active}"


def make_mixture(
    num_experts: int,
    init: Init,
    hidden: int | None,
    maker: GateMaker,
    capacity: Capacity | None,
    name: str,
    part: FeedForward,
) -> ConvertedMoE:
    """Makes the mixture that stands for a feed-forward part.

    Args:
        num_experts: E.
        init: As for `convert`.
        hidden: Likewise.
        maker: From `gate_maker`.
        capacity: As for `convert`.
        name: Of the layer, for messages.
        part: The dense layer's.

    Raises:
        ValueError: Units that cannot be cut into equal parts, or a gate that fits no copies.
    """
    width = _expert_width(name, part.widths[1], num_experts, init, hidden)
    like, input_dim = part.first.weight, part.widths[0]
    pool = _make_pool(part, num_experts, init, width)
    slices = part.widths[1] // width if init == "split" else 1  # S, that make one dense layer
    gate = _make_gate(maker, input_dim, num_experts, slices)
    if init == "copy":
        _check_sums(gate, input_dim, num_experts)
    gate = gate.to(like.device, like.dtype)
    layer = ConvertedMoE(input_dim, pool, gate=gate, capacity=capacity)
    return layer.to(like.device).train(part.first.training)


def _is_a_call() -> bool:
    """Whether it is a call, not a forward repeated by checkpointing or traced for export."""
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    return torch._C._current_graph_task_id() == -1


def converted(model: nn.Module) -> Iterator[tuple[str, ConvertedMoE]]:
    """Yields the mixtures of a model that `convert` made, and their names."""
    for name, module in model.named_modules():
        if isinstance(module, ConvertedMoE):
            yield name, module


def auxiliary_losses(model: nn.Module) -> dict[str, Tensor]:
    """Takes the gates' losses of the last forward pass from all converted mixtures of a model.

    They are already scaled: add them to the loss, before `backward`. Each is taken once: a second
    call gives nothing until there was another forward pass. There are some in training alone, and
    of gates that have one (`gate={"kind": "top_k", "balance_loss": 0.01}`). Of a mixture that is
    called several times in one pass, as where layers share it, they are those of its last call.

    Args:
        model: The converted network, wrapped or not.

    Returns:
        Scalars by `MIXTURE.LOSS`, the name of the mixture's module and of its loss.

    Raises:
        ValueError: Losses that no gradient can pass through, of re-entrant checkpointing.

    Example:
        >>> import torch
        >>> from mmoe.integrations.convert import auxiliary_losses, convert
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = convert(layer, 4, gate={"kind": "top_k", "balance_loss": 0.01})
        >>> loss = model(torch.randn(2, 5, 16)).square().mean()
        >>> losses = auxiliary_losses(model)
        >>> list(losses), auxiliary_losses(model)
        (['linear1.balance_loss'], {})
        >>> (loss + sum(losses.values())).backward()
    """
    taken: dict[str, Tensor] = {}
    for name, layer in converted(model):
        losses, layer.last_losses = layer.last_losses, {}
        learns = any(weight.requires_grad for weight in layer.mixture.gate.parameters())
        for loss_name, loss in losses.items():
            if torch.is_grad_enabled() and learns and not loss.requires_grad:
                raise ValueError(
                    f"{name or 'model'}: expected a {loss_name} with a gradient, got one computed "
                    "without; checkpoint layers with use_reentrant=False, or read it under "
                    "torch.no_grad() as well"
                )
            taken[f"{name}.{loss_name}" if name else loss_name] = loss
    return taken


class ParameterCounts(NamedTuple):
    """Numbers of a network's parameters.

    Attributes:
        total: All of them.
        active: Those that one row uses: of experts, as many as its gate picks.
    """

    total: int
    active: int


def parameter_counts(model: nn.Module) -> ParameterCounts:
    """Counts a network's parameters, and those that one row uses.

    Where experts lie on several ranks, they are those of this rank.

    Example:
        >>> import torch
        >>> from mmoe.integrations.convert import convert, parameter_counts
        >>> linears = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        >>> layer = torch.nn.Sequential(linears[0], torch.nn.ReLU(), linears[1])
        >>> parameter_counts(layer), parameter_counts(convert(layer, num_experts=4, k=1))
        (ParameterCounts(total=552, active=552), ParameterCounts(total=2240, active=584))
    """
    total = sum(weight.numel() for weight in model.parameters())
    resting = 0
    for _, layer in converted(model):
        mixture = layer.mixture
        k = traits_of(mixture.gate, GateTraits).k
        picks = k if isinstance(k, int) else mixture.num_experts
        own = sum(weight.numel() for weight in mixture.experts.parameters())
        resting += own * (mixture.num_experts - picks) // mixture.num_experts
    return ParameterCounts(total, total - resting)
