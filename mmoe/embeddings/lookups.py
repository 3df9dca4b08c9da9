"""The ids of a batch, feature by feature, what they were looked up to be, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import FeatureSpec


class Lookups(NamedTuple):
    """Embeddings of a batch.

    Attributes:
        x_BD: Pooled features side by side, in their order, float32.
        events: Of each feature with pooling none `e_VD`, an embedding for each id, row after row.
        lengths_SB: How many ids each of these has in each row.
    """

    x_BD: Tensor
    events: tuple[Tensor, ...] = ()
    lengths_SB: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that have gradients."""
        return [self.x_BD, *self.events]

    def leaves(self, sizes: Sequence[int]) -> "list[Lookups]":
        """Cuts them into batches of these heights: leaves of a graph, which collect gradients.

        Where nothing that was looked up is trained, they collect none.
        """
        x, learns = self.x_BD.detach().split(list(sizes)), self.x_BD.requires_grad
        if self.lengths_SB is None:
            return [Lookups(x_BD.requires_grad_(learns)) for x_BD in x]
        lengths = self.lengths_SB.split(list(sizes), dim=1)
        counts = torch.stack([lengths_SB.sum(dim=1) for lengths_SB in lengths]).tolist()
        by_event = [
            events_VD.detach().split([of_batch[s] for of_batch in counts])
            for s, events_VD in enumerate(self.events)
        ]
        return [
            Lookups(
                x_BD.requires_grad_(learns),
                tuple(
                    events_VD.requires_grad_(whole.requires_grad)
                    for events_VD, whole in zip(events, self.events, strict=True)
                ),
                lengths_SB,
            )
            for x_BD, events, lengths_SB in zip(
                x, zip(*by_event, strict=True), lengths, strict=True
            )
        ]


def lengths_of_events(features: Sequence[FeatureSpec], lengths_CB: Tensor) -> Tensor | None:
    """Returns the lengths of features with pooling none, [S, B]; None where there are none.

    Example:
        >>> import torch
        >>> from mmoe.config import FeatureSpec
        >>> item = FeatureSpec(name="item", table="item", pooling="sum")
        >>> events = FeatureSpec(name="seen", table="item", pooling="none")
        >>> lengths_of_events([item, events], torch.tensor([1, 1, 0, 3]))
        tensor([[0, 3]])
    """
    unpooled = [c for c, feature in enumerate(features) if feature.pooling == "none"]
    if not unpooled:
        return None
    return lengths_CB.view(len(features), lengths_CB.numel() // len(features))[unpooled]


def divide_by_length(sums_BD: Tensor, lengths_B: Tensor) -> Tensor:
    """Turns sums into means; a row without ids stays zero.

    Tables pool by sum, and the division is done per feature, because a TorchRec table has one
    pooling for all the features that share it.
    """
    return sums_BD / lengths_B.clamp(min=1).to(sums_BD.dtype)[:, None]


def needed_weights(features: Sequence[FeatureSpec], id_weights: Tensor | None) -> Tensor | None:
    """Returns the weights of ids where a feature has any, else None.

    Raises:
        ValueError: A feature is weighted, and no weights came.
    """
    weighted = [feature.name for feature in features if feature.weighted]
    if not weighted:
        return None
    if id_weights is None:
        raise ValueError(
            f"id_weights: expected a weight for each id, as feature {weighted[0]!r} is weighted, "
            "got None; pass the batch's id_weights"
        )
    return id_weights


class Bags(NamedTuple):
    """Ids of one feature, row after row.

    Attributes:
        ids_V: int64.
        lengths_B: Ids of each row, int64.
        weights_V: Of the ids, float32; None: all are 1.
    """

    ids_V: Tensor
    lengths_B: Tensor
    weights_V: Tensor | None

    def of_one_each(self) -> "Bags":
        """Makes a bag of each id."""
        return Bags(self.ids_V, torch.ones_like(self.ids_V), None)

    def within(self, rows: range) -> "Bags":
        """Keeps only the ids in `rows`, counted from its first; as many bags, some emptier.

        Example:
            >>> import torch
            >>> bags = Bags(torch.tensor([7, 2, 8]), torch.tensor([2, 0, 1]), None)
            >>> bags.within(range(7, 9)).ids_V.tolist(), bags.within(range(7, 9)).lengths_B.tolist()
            ([0, 1], [1, 0, 1])
        """
        kept_V = (self.ids_V >= rows.start) & (self.ids_V < rows.stop)
        kept_before = F.pad(kept_V.cumsum(0), (1, 0))
        ends_B = self.lengths_B.cumsum(0)
        return Bags(
            self.ids_V[kept_V] - rows.start,
            kept_before[ends_B] - kept_before[ends_B - self.lengths_B],
            None if self.weights_V is None else self.weights_V[kept_V],
        )


def bounds_of(lengths: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns where each bag begins, and where the last one ends, int64 [B + 1], by feature.

    Args:
        lengths: Of one feature or more, int64 [B] each.

    Example:
        >>> import torch
        >>> bounds_of([torch.tensor([2, 0, 1])])[0].tolist()
        [0, 2, 2, 3]
    """
    return F.pad(torch.stack(list(lengths)).cumsum(1), (1, 0)).unbind()


def split_bags(
    features: Sequence[FeatureSpec], values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None
) -> list[Bags]:
    """Splits a batch as embeddings get it (see `EmbeddingBackend`) by feature.

    Raises:
        ValueError: A feature is weighted, and no weights came.
    """
    lengths = lengths_CB.long().view(len(features), lengths_CB.numel() // max(len(features), 1))
    counts = lengths.sum(dim=1).tolist()
    weights = needed_weights(features, id_weights)
    of_features = [None] * len(features) if weights is None else weights.split(counts)
    return [
        Bags(ids_V, lengths_B, weights_V if feature.weighted else None)
        for feature, ids_V, lengths_B, weights_V in zip(
            features, values.long().split(counts), lengths, of_features, strict=True
        )
    ]


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
