"""Softmaxes over few numbers, for very many rows: of all gates of all rows over their experts."""

from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import check_dims
from mmoe.ops._library import define

MOST_NUMBERS = 16  # of a row
# Less than fill a vector of the widest registers: from there on torch is faster
_FEW = 15


def visible_softmax(logits_BGE: Tensor, visibility_GE: Tensor) -> Tensor:
    """Computes the softmax over experts that each gate sees; 0 exactly for the others.

    Example:
        >>> import torch
        >>> from mmoe.ops.row_softmax import visible_softmax
        >>> visible_softmax(torch.zeros(1, 1, 3), torch.tensor([[True, True, False]]))
        tensor([[[0.5000, 0.5000, 0.0000]]])
    """
    # Looking is free on a CPU in eager mode, and two passes over the logits are not
    eager = not torch.compiler.is_compiling() and type(visibility_GE) is Tensor
    if eager and visibility_GE.device.type == "cpu" and bool(visibility_GE.all()):
        return softmax_of_few(logits_BGE)
    return softmax_of_few(logits_BGE.masked_fill(~visibility_GE, -torch.inf))


def softmax_of_few(x: Tensor) -> Tensor:
    """Computes the softmax over the last dimension.

    On a CPU torch takes one row after the other, which leaves vectors half empty where a row has
    few numbers: with 64 gates of 8 experts on 4,096 rows 28 ms, and 11 ms backward, on a core where
    this takes 1.4 and 1.6. Here a vector holds numbers of many rows (`row_softmax`). A row's bits
    depend on that row alone.

    Args:
        x: `[..., N]`, any float type.

    Returns:
        As `x.softmax(-1)`.

    Example:
        >>> import torch
        >>> from mmoe.ops.row_softmax import softmax_of_few
        >>> softmax_of_few(torch.zeros(3, 2, 4))[0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    plain = torch.compiler.is_compiling() or type(x) is not Tensor
    if plain or x.device.type != "cpu" or not 0 < x.shape[-1] <= _FEW or x.dtype.itemsize < 4:
        return x.softmax(-1)
    return row_softmax(x.reshape(-1, x.shape[-1])).view(x.shape)


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
