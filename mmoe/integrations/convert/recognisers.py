"""How the feed-forward part of a layer is found, and a mixture put in its place.

A recogniser looks at one module, its holder: `match` says what the feed-forward part is, `replace`
puts a mixture there and returns what then stands in the holder's place.
"""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmoe.integrations.convert.dropouts import seen_dropouts
from mmoe.integrations.convert.feed_forward import (
    Activation,
    FeedForward,
    agree,
    without_zeros,
)

Match = Callable[[nn.Module], FeedForward | None]
Replace = Callable[[nn.Module, nn.Module], nn.Module]

# What may stand around the two products of a Sequential, and stays
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity)


@dataclass(frozen=True)
class Recogniser:
    """One form of feed-forward part.

    Attributes:
        name: For messages.
        match: The part of a module; None: the module has none of this form. It leaves the module as
            it is.
        replace: `(module, mixture)`: puts the mixture in, and returns what stands in the module's
            place from now on: the module itself, or the mixture.
        makes_new: Whether that is another module, so that a network that is nothing but the part
            cannot be converted in place.
    """

    name: str
    match: Match
    replace: Replace
    makes_new: bool = False


def plain_linear(module: object) -> nn.Linear | None:
    """Returns a linear layer with a plain weight, and nothing else (quantised, parametrised).

    One with hooks neither: they may change what it gives (`spectral_norm`, pruning), and a mixture
    has no place to call them.
    """
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    return None if nn.utils.parametrize.is_parametrized(module) else module


def probability(module: object) -> float | None:
    """Returns how much a dropout drops, 0 where there is none; None: it is something else."""
    if module is None or isinstance(module, nn.Identity):
        return 0.0
    return module.p if type(module) is nn.Dropout else None


# --- torch's layers ---


def _torch_layer(layer: nn.Module) -> FeedForward | None:
    if not isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return None
    first, second = plain_linear(layer.linear1), plain_linear(layer.linear2)
    drops = probability(layer.dropout)
    if first is None or second is None or drops is None:
        return None
    part = FeedForward(first, second, layer.activation, dropout=drops)
    # A subclass may have another one
    return _if_computed(layer, part, _into_torch_layer, "_ff_block")


def _into_torch_layer(layer: nn.Module, mixture: nn.Module) -> nn.Module:
    """Its `_ff_block` stays, and torch's fused layer, which reads two weights, is told not to."""
    _into_chain("linear1", "activation", "dropout", "linear2")(layer, mixture)
    cast(Any, layer).activation_relu_or_gelu = 0
    return layer


def _into_chain(*names: str) -> Replace:
    """The mixture in place of what comes first; what came next has been done by then."""

    def replace(holder: nn.Module, mixture: nn.Module) -> nn.Module:
        first, *others = names
        setattr(holder, first, mixture)
        for name in others:
            if getattr(holder, name, None) is not None:
                setattr(holder, name, nn.Identity())
        return holder

    return replace


# --- Sequential(Linear, act, [Dropout], Linear, …) ---


def _sequential(module: nn.Module) -> FeedForward | None:
    span = _span(module)
    if span is None:
        return None
    layers = list(cast(nn.Sequential, module))
    start, stop = span
    between = layers[start + 1 : stop]
    first, second = cast(nn.Linear, layers[start]), cast(nn.Linear, layers[stop])
    kinds = [layer for layer in between if probability(layer) is None]
    drops = [p for p in map(probability, between) if p]
    if len(kinds) != 1 or len(drops) > 1:
        return None
    if drops and probability(between[0]):  # dropped before the activation
        return None
    part = FeedForward(first, second, kinds[0], dropout=sum(drops))
    return part if part.is_pointwise or not part.fits else None


def _into_sequential(module: nn.Module, mixture: nn.Module) -> nn.Module:
    span = _span(module)
    assert span is not None, "it has matched"
    start, stop = span
    sequence = cast(nn.Sequential, module)
    sequence[start] = mixture
    for place in range(start + 1, stop + 1):
        sequence[place] = nn.Identity()
    return module


def _span(module: nn.Module) -> tuple[int, int] | None:
    """The places of the two linear layers, where beside them are only norms and dropouts."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return None
    layers = list(module)
    places = [i for i, layer in enumerate(layers) if plain_linear(layer) is not None]
    if len(places) != 2:
        return None
    start, stop = places
    around = layers[:start] + layers[stop + 1 :]
    return (start, stop) if all(isinstance(layer, _NORMS) for layer in around) else None


# --- blocks by the names of their layers ---


def _gated(block: nn.Module) -> FeedForward | None:
    part = _gated_layers(block)
    return None if part is None else _with_dropouts(block, part, _into_gated)


def _gated_layers(block: nn.Module) -> FeedForward | None:
    linears = [
        plain_linear(getattr(block, f"{name}_proj", None)) for name in ("up", "down", "gate")
    ]
    activation = _activation_of(block)
    up, down, gate = linears
    if up is None or down is None or gate is None or activation is None:
        return None
    return FeedForward(up, down, activation, gate=gate)


def _into_gated(block: nn.Module, mixture: nn.Module) -> nn.Module:
    """The mixture alone, and the dropout of outputs where there is one."""
    part = _gated_layers(block)
    found = None if part is None else seen_dropouts(block, part)
    after = [drop for drop in found.after if drop.p] if found is not None else []
    return nn.Sequential(mixture, *after) if after else mixture


def _fc(block: nn.Module) -> FeedForward | None:
    """`fc1, act, (a dropout,) fc2, (a dropout)`, the last of which stays."""
    part = _fc_layers(block)
    return None if part is None else _with_dropouts(block, part, _into_fc)


def _fc_layers(block: nn.Module) -> FeedForward | None:
    first, second = (plain_linear(getattr(block, name, None)) for name in ("fc1", "fc2"))
    activation = _activation_of(block)
    if first is None or second is None or activation is None:
        return None
    return FeedForward(first, second, activation)


def _into_fc(block: nn.Module, mixture: nn.Module) -> nn.Module:
    """A dropout of hidden units that the block calls after `fc2` too is then called for both."""
    part = _fc_layers(block)
    found = None if part is None else seen_dropouts(block, part)
    between, after = found if found is not None else ([], [])
    again = [copy.copy(drop) for drop in after if drop in between]
    for name, child in list(block.named_children()):
        if child in between:
            setattr(block, name, nn.Identity())
    _into_chain("fc1", *_ACTIVATION_NAMES, "fc2")(block, mixture)
    if again:
        cast(Any, block).fc2 = again[0] if len(again) == 1 else nn.Sequential(*again)
    return block


def _two_modules(layer: nn.Module) -> FeedForward | None:
    """`intermediate` (dense, activation) and `output` (dense, …), as BERT and Swin have them."""
    before, after = getattr(layer, "intermediate", None), getattr(layer, "output", None)
    if not isinstance(before, nn.Module) or not isinstance(after, nn.Module):
        return None
    first, second = (plain_linear(getattr(part, "dense", None)) for part in (before, after))
    activation = getattr(before, "intermediate_act_fn", None)
    if first is None or second is None or activation is None:
        return None
    part = FeedForward(first, second, activation)
    if not part.fits:
        return part
    if any(probability(module) for module in before.modules()):  # of hidden units
        return None
    gives = agree(before, before, part.hidden, *_read_by(first))
    return part if gives and part.is_pointwise and _begins_with(after, second) else None


def _begins_with(after: nn.Module, second: nn.Linear) -> bool:
    """Whether a module's `dense` reads what it is given first, beside a residual or alone."""
    generator = torch.Generator().manual_seed(1)
    residual = torch.randn(1, 2, 3, second.out_features, generator=generator).to(second.weight)

    def rest(x: Tensor, *more: Tensor) -> Tensor:
        cast(Any, after).dense = nn.Identity()
        try:
            return after(second(x), *more)
        finally:
            cast(Any, after).dense = second

    return any(
        agree(after, partial(_call, after, more), partial(_call, rest, more), *_read_by(second))
        for more in ((residual,), ())
    )


def _call(function: Callable[..., Tensor], more: tuple[Tensor, ...], x: Tensor) -> Tensor:
    return function(x, *more)


def _read_by(layer: nn.Linear) -> tuple[Tensor, int]:
    return layer.weight, layer.in_features


def _into_two_modules(layer: nn.Module, mixture: nn.Module) -> nn.Module:
    cast(Any, layer).intermediate = mixture
    cast(Any, layer).output.dense = nn.Identity()
    return layer


_ACTIVATION_NAMES = ("act", "act_fn", "activation", "activation_fn")


def _activation_of(block: nn.Module) -> Activation | None:
    for name in _ACTIVATION_NAMES:
        found: Any = getattr(block, name, None)
        if callable(found):
            return cast(Activation, found)
    return None


def _with_dropouts(block: nn.Module, part: FeedForward, replace: Replace) -> FeedForward | None:
    """The part with the dropout of its hidden units, where the block's code does that."""
    if not part.fits:
        return part
    found = seen_dropouts(block, part)
    if found is None:
        return None
    drops = sum(drop.p for drop in found.between)
    return _if_computed(block, dataclasses.replace(part, dropout=drops), replace)


def _if_computed(
    block: nn.Module, part: FeedForward, replace: Replace, method: str = "__call__"
) -> FeedForward | None:
    """The part, where the block's code does that; products that do not fit are told of later.

    Asked of a copy with the part replaced as well: some code reads the weights of its layers.
    """
    if not part.fits:
        return part
    trial = copy.copy(block)
    trial._modules = dict(block._modules)
    trial = replace(trial, _Whole(part))
    with without_zeros(part):
        same = all(
            agree(each, getattr(each, method), part.compute, *_read_by(part.first))
            for each in (block, trial)
        )
    return part if same and part.is_pointwise else None


class _Whole(nn.Module):
    """Stands for the mixture."""

    def __init__(self, part: FeedForward) -> None:
        super().__init__()
        self.compute = part.compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


def _instead(module: nn.Module, mixture: nn.Module) -> nn.Module:
    return mixture


class Recognisers:
    """The recognisers there are; those that came last are asked first."""

    def __init__(self, *shipped: Recogniser) -> None:
        self._all = list(shipped)

    def add(self, recogniser: Recogniser) -> None:
        """Adds one; in place of the one of its name, if there is one."""
        self._all = [recogniser, *(each for each in self._all if each.name != recogniser.name)]

    def remove(self, name: str) -> None:
        """Forgets one that was added."""
        self._all = [each for each in self._all if each.name != name]

    def names(self) -> list[str]:
        """Lists their names."""
        return [each.name for each in self._all]

    def find(self, module: nn.Module) -> tuple[Recogniser, FeedForward] | None:
        """Returns the first one that takes the module, and what it found."""
        for recogniser in self._all:
            part = recogniser.match(module)
            if part is not None:
                return recogniser, part
        return None


RECOGNISERS = Recognisers(
    Recogniser("torch's Transformer layers", _torch_layer, _into_torch_layer),
    Recogniser("Sequential(Linear, activation, Linear)", _sequential, _into_sequential),
    Recogniser("gate_proj, up_proj, down_proj", _gated, _into_gated, makes_new=True),
    Recogniser("fc1, act, fc2", _fc, _into_fc),
    Recogniser("intermediate, output", _two_modules, _into_two_modules),
)


def register(
    recogniser: Recogniser | str, match: Match | None = None, replace: Replace | None = None
) -> None:
    """Adds a form of feed-forward part of your own, which is asked before those that there are.

    Args:
        recogniser: The `Recogniser`, or its name beside what it does.
        match: Module → its `FeedForward`, or None.
        replace: `(module, mixture)` → what stands in the module's place; default: the mixture.

    Raises:
        ValueError: A name without `match`, or a `Recogniser` beside it.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from mmoe.integrations.convert import RECOGNISERS, FeedForward, convert, register
        >>> class Own(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.wi, self.wo = nn.Linear(8, 32), nn.Linear(32, 8)
        ...
        ...     def forward(self, x):
        ...         return self.wo(self.wi(x).relu())
        >>> def match(module):
        ...     if isinstance(module, Own):
        ...         return FeedForward(module.wi, module.wo, torch.relu)
        >>> register("own", match)
        >>> type(convert(nn.ModuleDict({"mlp": Own()}))["mlp"]).__name__
        'ConvertedMoE'
        >>> RECOGNISERS.remove("own")
    """
    if isinstance(recogniser, Recogniser) and match is None and replace is None:
        RECOGNISERS.add(recogniser)
        return
    if not isinstance(recogniser, str) or not callable(match):
        raise ValueError(
            "recogniser: expected a Recogniser alone, or a name with match(module), got "
            f"{recogniser!r} with {match!r}; use register('name', match, replace)"
        )
    new = replace is None
    RECOGNISERS.add(Recogniser(recogniser, match, replace or _instead, makes_new=new))
