"""Feed-forward parts of blocks that are known by the names of their layers."""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmoe.integrations.convert.agree import agree, if_computed
from mmoe.integrations.convert.dropouts import seen_dropouts
from mmoe.integrations.convert.feed_forward import Activation, FeedForward
from mmoe.integrations.convert.plain_layers import (
    Replace,
    into_chain,
    plain_linear,
    probability,
)


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
