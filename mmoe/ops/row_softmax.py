"""`row_softmax`: a softmax over few numbers, for very many rows."""

from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import check_dims
from mmoe.ops._library import define

MOST_NUMBERS = 16  # of a row


def row_softmax(x_RN: Tensor) -> Tensor:
    """Computes the softmax of every row: `p[r, n] = exp(x[r, n]) / sum over m of exp(x[r, m])`.

    On the CPU a vector register holds a number of many rows, and a row's bits depend on that row
    alone.

    Args:
        x_RN: float32 or float64, of 1 to 16 numbers a row. One of −∞ gets 0; a row of −∞ alone, or
            with a NaN, gets NaN.

    Returns:
        `p_RN` in x's dtype.

    Raises:
        ValueError: Another dtype or number of numbers.

    Example:
        >>> import torch
        >>> from mmoe.ops.row_softmax import row_softmax
        >>> row_softmax(torch.zeros(1, 4)).tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """
    check_dims("x_RN", x_RN, "RN")
    if x_RN.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x_RN: expected torch.float32 or torch.float64, got {x_RN.dtype}")
    if not 1 <= x_RN.shape[1] <= MOST_NUMBERS:
        raise ValueError(
            f"x_RN: expected rows of 1 to {MOST_NUMBERS} numbers, got {x_RN.shape[1]}; use .softmax"
        )
    return torch.ops.mmoe.row_softmax(x_RN)


def _fake(x_RN: Tensor) -> Tensor:
    return x_RN.new_empty(x_RN.shape)


def _fake_backward(grad_RN: Tensor, p_RN: Tensor) -> Tensor:
    return p_RN.new_empty(p_RN.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad_RN: Tensor) -> Tensor:
    (p_RN,) = ctx.saved_tensors
    return torch.ops.mmoe.row_softmax_backward(grad_RN, p_RN)


define("row_softmax(Tensor x_RN) -> Tensor", _fake)
define("row_softmax_backward(Tensor grad_RN, Tensor p_RN) -> Tensor", _fake_backward)
register_autograd("row_softmax", _backward, _setup_context)
