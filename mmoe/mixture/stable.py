"""Layers and activations for scoring: a row's bits do not depend on where in the batch it stands.

On the CPU torch computes the last few numbers of a tensor, those that fill no vector register, by
another formula than the rest. Of 210 tensors of odd shapes `torch.sigmoid` and `F.silu` changed
bits of a moved row in 50 to 58, `F.gelu` in 1 (torch 2.13, float32); `exp`, `erf`, `tanh`,
`logsigmoid`, softmax and layer normalisation in none, so the forms here are made of those.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# MKL sums the inner products of narrow fp32 results in an order that depends on the row's place:
# in torch 2.13 with 2 to 11 columns a shuffled batch gave other last bits in 12 to 24 of 54 shapes,
# with 12 to 256 columns in none of 1,200. With a margin, and a whole number of vector registers:
STABLE_WIDTH = 16


def stable_sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + exp(−x))`, whose bits depend on x alone.

    Example:
        >>> import torch
        >>> from mmoe.mixture.stable import stable_sigmoid
        >>> stable_sigmoid(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """
    if x.device.type != "cpu":
        return x.sigmoid()
    # Not 1 / (1 + exp(−x)): its gradient is NaN where exp(−x) is infinite.
    return F.logsigmoid(_wide(x)).exp().to(x.dtype)


def stable_activation(x: Tensor, activation: str) -> Tensor:
    """ReLU, GELU (the exact one) or SiLU, whose bits depend on x alone.

    Args:
        x: Of any shape and float type.
        activation: `relu`, `gelu` or `silu`.

    Returns:
        `max(x, 0)`, `x · Φ(x)` or `x · σ(x)`, in x's dtype.

    Example:
        >>> import torch
        >>> from mmoe.mixture.stable import stable_activation
        >>> stable_activation(torch.tensor([-1.0, 1.0]), "silu")
        tensor([-0.2689,  0.7311])
    """
    if activation == "relu":
        return F.relu(x)
    if x.device.type != "cpu":
        return F.gelu(x) if activation == "gelu" else F.silu(x)
    wide = _wide(x)
    if activation == "gelu":
        return (0.5 * wide * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)
    return (wide * F.logsigmoid(wide).exp()).to(x.dtype)


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
        >>> from mmoe.mixture.stable import stable_linear
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


def _wide(x: Tensor) -> Tensor:
    """Narrow types would be rounded after every step."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
