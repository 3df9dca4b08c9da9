"""Agreement of code with known computations, found by running it: names do not tell."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mmoe.integrations.convert.feed_forward import Activation, FeedForward, Replace
from mmoe.mixture.checks import trial_run


def if_computed(
    block: nn.Module, part: FeedForward, replace: Replace, method: str = "__call__"
) -> FeedForward | None:
    """Returns the part, where the block's code does that; what does not fit is told of later.

    Asked of a copy with the part replaced as well: some code reads the weights of its layers.

    Args:
        block: The part's holder; it stays as it is.
        part: Its layers.
        replace: Of the recogniser.
        method: Of the block, which computes the part.
    """
    if not part.fits:
        return part
    trial = copy.copy(block)
    trial._modules = dict(block._modules)
    trial = replace(trial, _Whole(part))
    with without_zeros(part):
        same = all(
            agree(each, getattr(each, method), part.compute, part.first) for each in (block, trial)
        )
    return part if same and part.is_pointwise else None


class _Whole(nn.Module):
    """Stands for the mixture."""

    def __init__(self, part: FeedForward) -> None:
        super().__init__()
        self.compute = part.compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


def agree(module: nn.Module, call: Activation, expected: Activation, reader: nn.Linear) -> bool:
    """Returns whether `call`, the module or a method of it, gives what is expected of a few rows.

    A class tells by its names what it might compute; its code decides. In training too, but for
    modules that drop out. Draws no number of the caller's generators; a module without values (on
    the device `meta`) is taken at its word.

    Args:
        module: Runs in both modes; it gets its own back.
        call: Rows → rows.
        expected: Likewise.
        reader: A layer that reads such rows: of their width, in their type and on their device.
    """
    like = reader.weight
    if like.is_meta:
        return True
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 3, reader.in_features, generator=generator).to(like)
    tolerance = 1e-2 if like.dtype == torch.bfloat16 else 1e-4
    parts = list(module.modules())
    try:
        with trial_run(module, like.device):
            for training in (False, True):
                for each in parts:
                    each.training = training and not isinstance(each, _DropoutNd)
                if not _close(call(x), expected(x), tolerance):
                    return False
        return True
    except Exception:  # of somebody's code, any: it wants other things than one tensor of rows
        return False


@contextmanager
def without_zeros(part: FeedForward) -> Iterator[None]:
    """Draws weights that are all zero, as some start, meanwhile: they would hide what a block does.

    Args:
        part: Its products get their own weights back.
    """
    generator = torch.Generator().manual_seed(2)
    zeros = [
        (layer, layer.weight)
        for layer in part.products
        if not layer.weight.is_meta and not layer.weight.any()
    ]
    try:
        for layer, weight in zeros:
            drawn = torch.randn(weight.shape, generator=generator).to(weight)
            layer.weight = nn.Parameter(drawn, requires_grad=False)
        yield
    finally:
        for layer, weight in zeros:
            layer.weight = weight


def _close(found: object, wanted: Tensor, tolerance: float) -> bool:
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max())


class Dropouts(NamedTuple):
    """The dropouts of a block, in the order of their calls.

    Attributes:
        between: Those of hidden units, at most one.
        after: Those of the output; one that the block calls at both places is in both.
    """

    between: list[nn.Dropout]
    after: list[nn.Dropout]


def seen_dropouts(block: nn.Module, part: FeedForward) -> Dropouts | None:
    """Runs a block on a few rows, and says where it drops out.

    Args:
        block: The part's holder.
        part: Its layers, whose `dropout` is not read.

    Returns:
        None where experts cannot do the same: it drops its input, its hidden units twice or before
        the activation, or in a way of its own; or the block does not compute the part at all.
    """
    with without_zeros(part), _watched(block, part) as calls:
        if not _runs(block, part, calls):
            return None
    places = [place for place, _ in calls]
    plain = all(type(module) is nn.Dropout for _, module in calls)
    if not plain or "before" in places or places.count("between") > 1:
        return None
    found: dict[str, list[Any]] = {"between": [], "after": []}
    for place, module in calls:
        found[place].append(module)
    return Dropouts(**found)


Calls = list[tuple[str, nn.Module]]


@contextmanager
def _watched(block: nn.Module, part: FeedForward) -> Iterator[Calls]:
    """Lists the dropouts called in a run, and where; those of hidden units double them."""
    calls: Calls = []
    place = "before"

    def set_place(new: str) -> Any:
        def hook(*_: object) -> None:
            nonlocal place
            place = new
            if new == "before":
                calls.clear()

        return hook

    def dropped(module: nn.Module, _: object, output: Tensor) -> Tensor | None:
        calls.append((place, module))
        return output * 2 if place == "between" else None

    first = [layer for layer in (part.first, part.gate) if layer is not None]
    drops = [module for module in block.modules() if isinstance(module, _DropoutNd)]
    hooks = [
        block.register_forward_pre_hook(set_place("before")),
        *(layer.register_forward_hook(set_place("between")) for layer in first),
        part.second.register_forward_hook(set_place("after")),
        *(drop.register_forward_hook(dropped) for drop in drops),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _runs(block: nn.Module, part: FeedForward, calls: Calls) -> bool:
    """Whether what is between are the hidden units, after the activation."""
    weight = part.first.weight
    if weight.is_meta:
        try:
            block(torch.zeros(1, 2, 3, part.widths[0], dtype=weight.dtype, device="meta"))
        except Exception:  # of somebody's code, any; it is then taken at its word
            calls.clear()
        return True

    def expected(x: Tensor) -> Tensor:
        doubled = 2 ** [place for place, _ in calls].count("between")
        return part.second(doubled * part.hidden(x))

    return agree(block, block, expected, part.first)
