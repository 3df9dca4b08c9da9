"""`gated_combine`: mix routed expert outputs for all gates, each pick by its slot in the plan."""

from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import (
    accumulate_dtype,
    check_device,
    check_dims,
    check_float,
    check_int32,
    check_shape,
)
from mmoe.ops._library import define


def gated_combine(y_PO: Tensor, slots_BGK: Tensor, weights_BGK: Tensor) -> Tensor:
    """Mixes routed expert outputs for every gate.

    out[b, g] = sum over k with slots[b, g, k] >= 0 of weights[b, g, k] * y[slots[b, g, k]]

    Sums are taken in float32 (float64 for float64 input) whatever the dtype of y. Unused picks add
    nothing, whatever their weight; rows of y that no slot names are never read and get gradient 0.
    The gradients for y and weights come out of one deterministic pass.

    Args:
        y_PO: float32, bfloat16 or float64, expert outputs in the order of `route_plan`'s pairs.
        slots_BGK: int32 in [0, P), or -1 for an unused pick. A pair belongs to one sample.
        weights_BGK: Floating point; may be wider than y (bfloat16 experts, float32 gates).

    Returns:
        out_BGO in y's dtype.

    Raises:
        ValueError: On shapes, dtypes or devices that do not fit, or (CPU) a slot outside [-1, P),
            or in the backward pass a pair that serves two samples. On a GPU the last two stop the
            kernel.

    Example:
        >>> import torch
        >>> from mmoe.ops import gated_combine
        >>> y = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
        >>> slots = torch.tensor([[[0, 1]], [[-1, -1]]], dtype=torch.int32)
        >>> gated_combine(y, slots, torch.tensor([[[0.5, 0.1]], [[0.7, 0.3]]])).tolist()
        [[[1.5, 3.0]], [[0.0, 0.0]]]
    """
    check_dims("y_PO", y_PO, "PO")
    check_float("y_PO", y_PO)
    check_dims("slots_BGK", slots_BGK, "BGK")
    check_int32("slots_BGK", slots_BGK)
    check_shape("weights_BGK", weights_BGK, slots_BGK.shape, "slots_BGK")
    check_float("weights_BGK", weights_BGK)
    check_device("slots_BGK", slots_BGK, y_PO.device, "y_PO")
    check_device("weights_BGK", weights_BGK, y_PO.device, "y_PO")
    weights_BGK = weights_BGK.to(accumulate_dtype(y_PO.dtype))
    return torch.ops.mmoe.gated_combine(y_PO, slots_BGK, weights_BGK)


def _fake(y_PO: Tensor, slots_BGK: Tensor, weights_BGK: Tensor) -> Tensor:
    return y_PO.new_empty(slots_BGK.shape[0], slots_BGK.shape[1], y_PO.shape[1])


def _fake_backward(
    grad_BGO: Tensor, y_PO: Tensor, slots_BGK: Tensor, weights_BGK: Tensor
) -> tuple[Tensor, Tensor]:
    return y_PO.new_empty(y_PO.shape), weights_BGK.new_empty(weights_BGK.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_BGO: Tensor) -> tuple[Tensor, None, Tensor]:
    grad_y_PO, grad_weights_BGK = torch.ops.mmoe.gated_combine_backward(
        grad_BGO, *ctx.saved_tensors
    )
    return grad_y_PO, None, grad_weights_BGK


define("gated_combine(Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK) -> Tensor", _fake)
define(
    "gated_combine_backward(Tensor grad_BGO, Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK)"
    " -> (Tensor, Tensor)",
    _fake_backward,
)
register_autograd("gated_combine", _backward, _setup_context)
