"""Whether code computes what it is expected to: names do not tell, a run does."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mmoe.integrations.convert.feed_forward import Activation, FeedForward
from mmoe.integrations.convert.plain_layers import Replace
from mmoe.mixture.width import trial_run


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
