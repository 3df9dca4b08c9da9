"""Forms of feed-forward parts: torch's Transformer layers, Sequentials, blocks known by names."""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmoe.integrations.convert.agree import agree, if_computed, seen_dropouts
from mmoe.integrations.convert.feed_forward import Activation, FeedForward, Replace, plain_linear

# What may stand around the two products of a Sequential, and stays
_AROUND = (nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity)


def torch_layer(layer: nn.Module) -> FeedForward | None:
    """Finds `linear1, activation, dropout, linear2` of a layer of a Transformer."""
    if not isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return None
    first, second = plain_linear(layer.linear1), plain_linear(layer.linear2)
    drops = probability(layer.dropout)
    if first is None or second is None or drops is None:
        return None
    part = FeedForward(first, second, layer.activation, dropout=drops)
    # A subclass may have another one
    return if_computed(layer, part, into_torch_layer, "_ff_block")


def into_torch_layer(layer: nn.Module, mixture: nn.Module) -> nn.Module:
    """Keeps its `_ff_block`; torch's fused layer, which reads two weights, is turned off."""
    into_chain("linear1", "activation", "dropout", "linear2")(layer, mixture)
    cast(Any, layer).activation_relu_or_gelu = 0
    return layer


def sequential(module: nn.Module) -> FeedForward | None:
    """Finds `Linear, activation, [Dropout,] Linear` with norms and dropouts around them."""
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


def into_sequential(module: nn.Module, mixture: nn.Module) -> nn.Module:
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


def gated(block: nn.Module) -> FeedForward | None:
    """Finds `gate_proj`, `up_proj`, `down_proj` and an activation, as Llama has them."""
    part = _gated_layers(block)
    return None if part is None else _with_dropouts(block, part, into_gated)


def _gated_layers(block: nn.Module) -> FeedForward | None:
    linears = [
        plain_linear(getattr(block, f"{name}_proj", None)) for name in ("up", "down", "gate")
    ]
    activation = _activation_of(block)
    up, down, gate = linears
    if up is None or down is None or gate is None or activation is None:
        return None
    return FeedForward(up, down, activation, gate=gate)


def into_gated(block: nn.Module, mixture: nn.Module) -> nn.Module:
    """Returns the mixture alone, and the dropout of outputs where there is one."""
    part = _gated_layers(block)
    found = None if part is None else seen_dropouts(block, part)
    after = [drop for drop in found.after if drop.p] if found is not None else []
    return nn.Sequential(mixture, *after) if after else mixture


def fc(block: nn.Module) -> FeedForward | None:
    """Finds `fc1, act, (a dropout,) fc2, (a dropout)`, the last of which stays."""
    part = _fc_layers(block)
    return None if part is None else _with_dropouts(block, part, into_fc)


def _fc_layers(block: nn.Module) -> FeedForward | None:
    first, second = (plain_linear(getattr(block, name, None)) for name in ("fc1", "fc2"))
    activation = _activation_of(block)
    if first is None or second is None or activation is None:
        return None
    return FeedForward(first, second, activation)


def into_fc(block: nn.Module, mixture: nn.Module) -> nn.Module:
    """Puts it in place of `fc1`; a dropout of hidden units and outputs is then of outputs alone."""
    part = _fc_layers(block)
    found = None if part is None else seen_dropouts(block, part)
    between, after = found if found is not None else ([], [])
    again = [copy.copy(drop) for drop in after if drop in between]
    for name, child in list(block.named_children()):
        if child in between:
            setattr(block, name, nn.Identity())
    into_chain("fc1", *_ACTIVATION_NAMES, "fc2")(block, mixture)
    if again:
        cast(Any, block).fc2 = again[0] if len(again) == 1 else nn.Sequential(*again)
    return block


def two_modules(layer: nn.Module) -> FeedForward | None:
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
    if any(probability(module) for module in before.modules()):  # of hidden units
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


def into_two_modules(layer: nn.Module, mixture: nn.Module) -> nn.Module:
    """Puts it in place of `intermediate`; all of `output` but its `dense` stays."""
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
    return if_computed(block, dataclasses.replace(part, dropout=drops), replace)


def probability(module: object) -> float | None:
    """Returns how much a dropout drops, 0 where there is none; None: it is something else."""
    if module is None or isinstance(module, nn.Identity):
        return 0.0
    return module.p if type(module) is nn.Dropout else None


def into_chain(*names: str) -> Replace:
    """Returns what puts a mixture in place of the first of these; the others then do nothing."""

    def replace(holder: nn.Module, mixture: nn.Module) -> nn.Module:
        first, *others = names
        setattr(holder, first, mixture)
        for name in others:
            if getattr(holder, name, None) is not None:
                setattr(holder, name, nn.Identity())
        return holder

    return replace
