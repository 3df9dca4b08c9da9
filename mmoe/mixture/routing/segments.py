"""Sums over each expert's rows, and the reverse: an expert's value for each of its rows."""

from typing import Any

import torch
from torch import Tensor

from mmoe import ops


def per_row(values_EH: Tensor, offsets_E1: Tensor, rows: int) -> Tensor:
    """Gives every row the values of its expert, `[rows, H]`; 0 past the last offset.

    Example:
        >>> import torch
        >>> offsets = torch.tensor([0, 2, 3], dtype=torch.int32)
        >>> per_row(torch.tensor([[1.0], [5.0]]), offsets, rows=3).flatten().tolist()
        [1.0, 1.0, 5.0]
    """
    # Not indexing, whose gradient a GPU adds up in any order: here it is a sum in a fixed one
    return ops.grouped_mm(values_EH.new_ones(rows, 1), offsets_E1, values_EH.unsqueeze(1))


def segment_sum(y_PH: Tensor, offsets_E1: Tensor) -> Tensor:
    """Adds up each expert's rows in a fixed order, `[E, H]`.

    Args:
        y_PH: float32 or float64.
        offsets_E1: int32; rows past the last offset are not read.

    Returns:
        The sums; 0 for an expert without rows.

    Example:
        >>> import torch
        >>> offsets = torch.tensor([0, 2, 2], dtype=torch.int32)
        >>> segment_sum(torch.tensor([[1.0], [2.0], [9.0]]), offsets).flatten().tolist()
        [3.0, 0.0]
    """
    return _SegmentSum.apply(y_PH, offsets_E1)


class _SegmentSum(torch.autograd.Function):
    """The sum over an expert's rows is the gradient of its bias."""

    @staticmethod
    def forward(ctx: Any, y_PH: Tensor, offsets_E1: Tensor) -> Tensor:
        ctx.save_for_backward(offsets_E1)
        ctx.rows = y_PH.shape[0]
        y_PH = y_PH.contiguous()
        ones_P1 = y_PH.new_ones(y_PH.shape[0], 1)
        weight_E1H = y_PH.new_zeros(offsets_E1.shape[0] - 1, 1, y_PH.shape[1])
        empty = y_PH.new_empty(0)
        # Of a product `x W[e] + b[e]` with y as the result's gradient, that of b[e] is the sum
        gradients = torch.ops.mmoe.grouped_mm_backward(
            y_PH, ones_P1, offsets_E1, weight_E1H, y_PH, empty, "none", False, False, True
        )
        return gradients[2]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (offsets_E1,) = ctx.saved_tensors
        (grad_EH,) = grad_outputs
        return per_row(grad_EH, offsets_E1, ctx.rows), None
