"""Recognition of a layer's feed-forward part, to put a mixture in its place.

A recogniser looks at one module, its holder: `match` says what the feed-forward part is, `replace`
puts a mixture there and returns what then stands in the holder's place.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmoe.integrations.convert.feed_forward import (
    Activation,
    Dropouts,
    FeedForward,
    Replace,
    agree,
    if_computed,
    plain_linear,
    seen_dropouts,
)

# What may stand around the two products of a Sequential, and stays
_AROUND = (nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity)


def _torch_layer(layer: nn.Module) -> FeedForward | None:
    """Finds `linear1, activation, dropout, linear2` of a layer of a Transformer."""
    if not isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return None
    first, second = plain_linear(layer.linear1), plain_linear(layer.linear2)
    drops = _probability(layer.dropout)
    if first is None or second is None or drops is None:
        return None
    part = FeedForward(first, second, layer.activation, dropout=drops)
    # A subclass may have another one
    return if_computed(layer, part, _into_torch_layer, "_ff_block")


def _into_torch_layer(layer: nn.Module, mixture: nn.Module) -> nn.Module:
    """Keeps its `_ff_block`; torch's fused layer, which reads two weights, is turned off."""
    _into_chain("linear1", "activation", "dropout", "linear2")(layer, mixture)
    cast(Any, layer).activation_relu_or_gelu = 0
    return layer


def _sequential(module: nn.Module) -> FeedForward | None:
    """Finds `Linear, activation, [Dropout,] Linear` with norms and dropouts around them."""
    span = _span(module)
    if span is None:
        return None
    layers = list(cast(nn.Sequential, module))
    start, stop = span
    between = layers[start + 1 : stop]
    first, second = cast(nn.Linear, layers[start]), cast(nn.Linear, layers[stop])
    kinds = [layer for layer in between if _probability(layer) is None]
    drops = [p for p in map(_probability, between) if p]
    if len(kinds) != 1 or len(drops) > 1:
        return None
    if drops and _probability(between[0]):  # dropped before the activation
        return None
    part = FeedForward(first, second, kinds[0], dropout=sum(drops))
    return part if part.is_pointwise or not part.fits else None


def _into_sequential(module: nn.Module, mixture: nn.Module) -> nn.Module:
    """Puts it at the place of the first product; what comes up to the second does nothing."""
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
    return (start, stop) if all(isinstance(layer, _AROUND) for layer in around) else None


def _gated(block: nn.Module) -> FeedForward | None:
    """Finds `gate_proj`, `up_proj`, `down_proj` and an activation, as Llama has them."""
    return _with_dropouts(block, _GATED_NAMES, _into_gated)


def _into_gated(block: nn.Module, mixture: nn.Module) -> nn.Module:
    """Returns the mixture alone, and the dropout of outputs where there is one."""
    after = [drop for drop in _dropouts_of(block, _GATED_NAMES).after if drop.p]
    return nn.Sequential(mixture, *after) if after else mixture


def _fc(block: nn.Module) -> FeedForward | None:
    """Finds `fc1, act, (a dropout,) fc2, (a dropout)`, the last of which stays."""
    return _with_dropouts(block, _FC_NAMES, _into_fc)


def _into_fc(block: nn.Module, mixture: nn.Module) -> nn.Module:
    """Puts it in place of `fc1`; a dropout of hidden units and outputs is then of outputs alone."""
    between, after = _dropouts_of(block, _FC_NAMES)
    again = [copy.copy(drop) for drop in after if drop in between]
    for name, child in list(block.named_children()):
        if child in between:
            setattr(block, name, nn.Identity())
    _into_chain("fc1", *_ACTIVATION_NAMES, "fc2")(block, mixture)
    if again:
        cast(Any, block).fc2 = again[0] if len(again) == 1 else nn.Sequential(*again)
    return block


def _two_modules(layer: nn.Module) -> FeedForward | None:
    """Finds `intermediate` (dense, act) and `output` (dense, …), as BERT and Swin have them."""
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
    if any(_probability(module) for module in before.modules()):  # of hidden units
        return None
    gives = agree(before, before, part.hidden, first)
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
        agree(after, partial(_call, after, more), partial(_call, rest, more), second)
        for more in ((residual,), ())
    )


def _call(function: Callable[..., Tensor], more: tuple[Tensor, ...], x: Tensor) -> Tensor:
    return function(x, *more)


def _into_two_modules(layer: nn.Module, mixture: nn.Module) -> nn.Module:
    """Puts it in place of `intermediate`; all of `output` but its `dense` stays."""
    cast(Any, layer).intermediate = mixture
    cast(Any, layer).output.dense = nn.Identity()
    return layer


# Names of the first product, the second one and, where there is one, the gate
_GATED_NAMES, _FC_NAMES = ("up_proj", "down_proj", "gate_proj"), ("fc1", "fc2")
_ACTIVATION_NAMES = ("act", "act_fn", "activation", "activation_fn")


def _activation_of(block: nn.Module) -> Activation | None:
    for name in _ACTIVATION_NAMES:
        found: Any = getattr(block, name, None)
        if callable(found):
            return cast(Activation, found)
    return None


def _named_layers(block: nn.Module, names: Sequence[str]) -> FeedForward | None:
    """The linear layers of these names, and an activation, where a block has all of them."""
    found = (plain_linear(getattr(block, name, None)) for name in names)
    linears, activation = [each for each in found if each is not None], _activation_of(block)
    if len(linears) < len(names) or activation is None:
        return None
    first, second, *gate = linears
    return FeedForward(first, second, activation, gate[0] if gate else None)


def _dropouts_of(block: nn.Module, names: Sequence[str]) -> Dropouts:
    part = _named_layers(block, names)
    found = None if part is None else seen_dropouts(block, part)
    return Dropouts([], []) if found is None else found


def _with_dropouts(block: nn.Module, names: Sequence[str], replace: Replace) -> FeedForward | None:
    """The part with the dropout of its hidden units, where the block's code does that."""
    part = _named_layers(block, names)
    if part is None or not part.fits:
        return part
    found = seen_dropouts(block, part)
    if found is None:
        return None
    drops = sum(drop.p for drop in found.between)
    return if_computed(block, dataclasses.replace(part, dropout=drops), replace)


def _probability(module: object) -> float | None:
    """Returns how much a dropout drops, 0 where there is none; None: it is something else."""
    if module is None or isinstance(module, nn.Identity):
        return 0.0
    return module.p if type(module) is nn.Dropout else None


def _into_chain(*names: str) -> Replace:
    """Returns what puts a mixture in place of the first of these; the others then do nothing."""

    def replace(holder: nn.Module, mixture: nn.Module) -> nn.Module:
        first, *others = names
        setattr(holder, first, mixture)
        for name in others:
            if getattr(holder, name, None) is not None:
                setattr(holder, name, nn.Identity())
        return holder

    return replace


Match = Callable[[nn.Module], FeedForward | None]


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
