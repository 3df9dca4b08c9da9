"""Where a block drops out: seen while it runs, for the names of its layers do not tell."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mmoe.integrations.convert.agree import agree, without_zeros
from mmoe.integrations.convert.feed_forward import FeedForward


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
