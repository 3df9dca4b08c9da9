"""A linear layer whose rows do not depend on where in the batch they stand."""

import torch
import torch.nn.functional as F
from torch import Tensor

# MKL sums the inner products of narrow fp32 results in an order that depends on the row's place:
# in torch 2.13 with 2 to 11 columns a shuffled batch gave other last bits in 12 to 24 of 54 shapes,
# with 12 to 256 columns in none of 1,200. With a margin, and a whole number of vector registers:
STABLE_WIDTH = 16


def stable_linear(x_BD: Tensor, weight_HD: Tensor, bias_H: Tensor | None = None) -> Tensor:
    """`x Wᵀ + b`, where shuffling the rows shuffles the result and changes no bit of it.

    Narrow products are computed with columns of zeros beside them. Meant for scoring: a row's score
    must not depend on its batch mates.

    Args:
        x_BD: Rows; batches of one height are compared.
        weight_HD: Weights.
        bias_H: Biases.

    Returns:
        `y_BH`, with rows that may lie apart in memory.

    Example:
        >>> import torch
        >>> from mmoe.mixture.linear import stable_linear
        >>> stable_linear(torch.ones(3, 2), torch.ones(4, 2)).shape
        torch.Size([3, 4])
    """
    width = weight_HD.shape[0]
    # One column is a matrix-vector product, which does not have the problem.
    if width == 1 or width >= STABLE_WIDTH or weight_HD.dtype != torch.float32:
        return F.linear(x_BD, weight_HD, bias_H)
    missing = STABLE_WIDTH - width
    weight_HD = F.pad(weight_HD, (0, 0, 0, missing))
    bias_H = None if bias_H is None else F.pad(bias_H, (0, missing))
    return F.linear(x_BD, weight_HD, bias_H)[:, :width]
