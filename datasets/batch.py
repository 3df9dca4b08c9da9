"""One batch, ready for the network."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """B rows as tensors; rows from `num_rows` on are padding (no label, missing ids).

    Attributes:
        dense_BF: float32, scaled numbers.
        values: int64 [V], ids, feature-major: all rows of feature 0, then of feature 1, …; first
            the single-id features, then the list features.
        lengths_CB: int32 [C · B], flat, ids of each (feature, row), feature-major.
        labels_BT: float32, 0 where unobserved; None when scoring.
        observed_BT: bool; None when scoring.
        weights_BT: float32; None when scoring.
        num_rows: Rows that are not padding.
        id_weights: float32 [V], the weight of each id, 1 for features without; None where no
            feature has weights.
    """

    dense_BF: torch.Tensor
    values: torch.Tensor
    lengths_CB: torch.Tensor
    labels_BT: torch.Tensor | None
    observed_BT: torch.Tensor | None
    weights_BT: torch.Tensor | None
    num_rows: int
    id_weights: torch.Tensor | None = None

    def __len__(self) -> int:
        """B, padding included."""
        return self.dense_BF.shape[0]
