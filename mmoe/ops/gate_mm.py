"""`gate_mm`: the product that gates decide by, in fp32 whatever the rows are in."""

from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import accumulate_dtype, check_device, check_dims, check_float, check_shape
from mmoe.ops._library import define


def gate_mm(x_BD: Tensor, weight_DN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Multiplies rows by the weights of all gates without rounding anything.

    y = x @ W + b

    No float32 copy of bfloat16 rows is made: the CPU widens them while they are read, a GPU takes
    the weights in three parts of bfloat16, and PyTorch's switch for TF32 changes nothing. A row's
    result depends on that row alone: not on its place, the other rows or the threads.

    Args:
        x_BD: float32, bfloat16 or float64.
        weight_DN: Any of these; widened to float32 (float64 beside float64 rows).
        bias_N: Likewise.

    Returns:
        y_BN in float32, or float64. Its gradient for x has x's dtype.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit.

    Example:
        >>> import torch
        >>> from mmoe.ops import gate_mm
        >>> x_BD = torch.ones(2, 3, dtype=torch.bfloat16)
        >>> gate_mm(x_BD, torch.full((3, 1), 1 + 2**-20)).tolist() == [[3 + 3 * 2**-20]] * 2
        True

    Source: Fedus et al., "Switch transformers" (JMLR 2022), section 2.4, for router arithmetic in
        float32 beside bfloat16 experts.
    """
    check_dims("x_BD", x_BD, "BD")
    check_float("x_BD", x_BD)
    check_dims("weight_DN", weight_DN, "DN")
    check_shape("weight_DN", weight_DN, [x_BD.shape[1], weight_DN.shape[1]], "the width of x_BD")
    check_float("weight_DN", weight_DN)
    check_device("weight_DN", weight_DN, x_BD.device, "x_BD")
    dtype = accumulate_dtype(x_BD.dtype)
    if bias_N is not None:
        check_shape("bias_N", bias_N, [weight_DN.shape[1]], "weight_DN")
        check_float("bias_N", bias_N)
        check_device("bias_N", bias_N, x_BD.device, "x_BD")
        bias_N = bias_N.to(dtype)
    return torch.ops.mmoe.gate_mm(x_BD, weight_DN.to(dtype), bias_N)


def _fake(x_BD: Tensor, weight_DN: Tensor, bias_N: Tensor | None) -> Tensor:
    return weight_DN.new_empty(x_BD.shape[0], weight_DN.shape[1])


def _fake_backward(
    grad_BN: Tensor,
    x_BD: Tensor,
    weight_DN: Tensor,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x_BD.new_empty(x_BD.shape if need_x else 0),
        weight_DN.new_empty(weight_DN.shape if need_weight else 0),
        weight_DN.new_empty(weight_DN.shape[1] if need_bias else 0),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_BD, weight_DN, _ = inputs
    ctx.save_for_backward(x_BD, weight_DN)


def _backward(ctx: Any, grad_BN: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.mmoe.gate_mm_backward(grad_BN, *ctx.saved_tensors, *ctx.needs_input_grad)
    return tuple(
        gradient if needed else None
        for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=True)
    )


define("gate_mm(Tensor x_BD, Tensor weight_DN, Tensor? bias_N) -> Tensor", _fake)
define(
    "gate_mm_backward(Tensor grad_BN, Tensor x_BD, Tensor weight_DN, bool need_x,"
    " bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)",
    _fake_backward,
)
register_autograd("gate_mm", _backward, _setup_context)
