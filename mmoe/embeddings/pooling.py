"""Pooling shared by the backends."""

from torch import Tensor


def divide_by_length(sums_BD: Tensor, lengths_B: Tensor) -> Tensor:
    """Turns sums into means; a row without ids stays zero.

    Tables pool by sum, and the division is done per feature, because a TorchRec table has one
    pooling for all the features that share it.
    """
    return sums_BD / lengths_B.clamp(min=1).to(sums_BD.dtype)[:, None]
