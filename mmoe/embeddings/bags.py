"""The ids of a batch, feature by feature."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import FeatureSpec


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


def feature_weights(
    features: Sequence[FeatureSpec], counts: list[int], id_weights: Tensor | None
) -> list[Tensor | None]:
    """Returns the weights of each weighted feature's ids, None for the others."""
    weights = needed_weights(features, id_weights)
    if weights is None:
        return [None] * len(features)
    parts = weights.split(counts)
    return [part if f.weighted else None for f, part in zip(features, parts, strict=True)]


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
    features: Sequence[FeatureSpec],
    values: Tensor,
    lengths_CB: Tensor,
    id_weights: Tensor | None,
) -> list[Bags]:
    """Splits a batch as embeddings get it (see `EmbeddingBackend`) by feature.

    Raises:
        ValueError: A feature is weighted, and no weights came.
    """
    lengths = lengths_CB.long().view(len(features), lengths_CB.numel() // max(len(features), 1))
    counts = lengths.sum(dim=1).tolist()
    weights = feature_weights(features, counts, id_weights)
    return [
        Bags(*of_feature)
        for of_feature in zip(values.long().split(counts), lengths, weights, strict=True)
    ]
