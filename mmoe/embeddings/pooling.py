"""Pooling shared by the backends."""

from collections.abc import Sequence

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
