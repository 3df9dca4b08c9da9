"""The ids of a batch, feature by feature, and `Lookups`: what they were looked up to be."""

from collections.abc import Sequence
from typing import NamedTuple

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
        """Those that have gradients."""
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
