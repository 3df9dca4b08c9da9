"""Pooled embeddings in another order, and means out of sums, in one pass over memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mmoe.config import FeatureSpec


@dataclass(frozen=True)
class Block:
    """A block of columns that are next to each other before and after they are arranged.

    Attributes:
        source: First column before.
        target: First column after.
        width: Number of columns.
        mean: Number of the feature whose lengths they are divided by; None: they are copied.
    """

    source: int
    target: int
    width: int
    mean: int | None = None


def arrangement(
    features: Sequence[FeatureSpec], dims: Sequence[int], keys: Sequence[str]
) -> list[Block]:
    """Finds the fewest blocks that bring the columns of `keys` into the order of `features`.

    Args:
        features: In the wanted order; those with pooling mean are to be divided.
        dims: Width of each feature.
        keys: The same features in the order that there is.

    Example:
        >>> from mmoe.config import FeatureSpec
        >>> abc = (FeatureSpec(name=n, table=n, pooling="sum") for n in "abc")
        >>> blocks = arrangement(list(abc), [4, 4, 8], ["c", "a", "b"])
        >>> [(b.source, b.target, b.width) for b in blocks]
        [(8, 0, 8), (0, 8, 8)]
    """
    width = {feature.name: dim for feature, dim in zip(features, dims, strict=True)}
    starts = dict(zip(keys, accumulate((width[key] for key in keys), initial=0), strict=False))
    blocks: list[Block] = []
    target = 0
    for number, feature in enumerate(features):
        source, wide = starts[feature.name], width[feature.name]
        mean = number if feature.pooling == "mean" else None
        last = blocks[-1] if blocks else None
        if last and mean is None and last.mean is None and last.source + last.width == source:
            blocks[-1] = Block(last.source, last.target, last.width + wide)
        else:
            blocks.append(Block(source, target, wide, mean))
        target += wide
    return blocks


def arrange(sums_BD: Tensor, lengths_CB: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Puts pooled columns in the order of the features, means divided by the number of their ids.

    A row without ids stays zero. Tables pool by sum, and the division is done per feature, because
    a TorchRec table has one pooling for all the features that share it.

    Args:
        sums_BD: Sums over each row's ids, float.
        lengths_CB: Ids of each (feature, row), feature-major, flat [C · B].
        blocks: From `arrangement`.

    Returns:
        x_BD, in the type of the sums; `sums_BD` itself where there is nothing to do.

    Example:
        >>> import torch
        >>> sums_BD, lengths_CB = torch.tensor([[1.0, 6.0]]), torch.tensor([3, 1])
        >>> arrange(sums_BD, lengths_CB, [Block(1, 0, 1, mean=0), Block(0, 1, 1)])
        tensor([[2., 1.]])
    """
    if len(blocks) == 1 and blocks[0].mean is None:
        return sums_BD
    return _Arrange.apply(sums_BD, lengths_CB, blocks)


class _Arrange(torch.autograd.Function):
    """Slices, divisions and `cat` pass over memory three times, and their gradients again."""

    @staticmethod
    def forward(ctx: Any, sums_BD: Tensor, lengths_CB: Tensor, blocks: Sequence[Block]) -> Tensor:
        ctx.blocks = blocks
        ctx.save_for_backward(lengths_CB)
        out_BD = torch.empty_like(sums_BD)
        for block in blocks:
            before_BW = sums_BD.narrow(1, block.source, block.width)
            after_BW = out_BD.narrow(1, block.target, block.width)
            _move(before_BW, after_BW, lengths_CB, block)
        return out_BD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad_BD,) = grads
        (lengths_CB,) = ctx.saved_tensors
        out_BD = torch.empty_like(grad_BD, memory_format=torch.contiguous_format)
        for block in ctx.blocks:
            after_BW = grad_BD.narrow(1, block.target, block.width)
            before_BW = out_BD.narrow(1, block.source, block.width)
            _move(after_BW, before_BW, lengths_CB, block)
        return out_BD, None, None


def _move(source_BW: Tensor, target_BW: Tensor, lengths_CB: Tensor, block: Block) -> None:
    if block.mean is None:
        target_BW.copy_(source_BW)
        return
    rows = len(source_BW)
    lengths_B = lengths_CB[block.mean * rows : (block.mean + 1) * rows].clamp(min=1)
    torch.div(source_BW, lengths_B.to(source_BW.dtype)[:, None], out=target_BW)
