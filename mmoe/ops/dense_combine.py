"""`dense_combine`: mix the outputs of all experts for all gates, each output read once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import (
    accumulate_dtype,
    check_device,
    check_dims,
    check_float,
    check_shape,
)
from mmoe.ops._library import define


def dense_combine(y: Sequence[Tensor] | Tensor, weights_BGE: Tensor) -> Tensor:
    """Mixes the outputs of all experts for every gate.

    out[b, g] = sum over e of weights[b, g, e] * y[e][b]

    Each expert output is read once for all gates, forward and backward. Sums are taken in float32
    (float64 for float64 input) whatever the dtype of y.

    Args:
        y: E tensors [B, O], or one tensor y_EBO; float32, bfloat16 or float64. Rows may lie apart
            (slices of one wide product need no copy).
        weights_BGE: Floating point; may be wider than y (bfloat16 experts, float32 gates). Softmax
            and its kin belong to the gate.

    Returns:
        out_BGO in y's dtype. In memory a gate's rows lie side by side, [G, B, O]: what reads one
        gate's needs no copy.

    Raises:
        ValueError: On shapes, dtypes or devices that do not fit.

    Example:
        >>> import torch
        >>> from mmoe.ops import dense_combine
        >>> y = [torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0]])]  # 2 experts, 1 sample
        >>> weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])  # 2 gates
        >>> dense_combine(y, weights).tolist()
        [[[1.0, 2.0], [5.5, 11.0]]]
        >>> dense_combine(torch.stack(y), weights).tolist()
        [[[1.0, 2.0], [5.5, 11.0]]]
    """
    tensors = check_mixing(y, weights_BGE)
    weights_BGE = weights_BGE.to(accumulate_dtype(tensors[0].dtype))
    return torch.ops.mmoe.dense_combine(tensors, weights_BGE)


def check_mixing(y: Sequence[Tensor] | Tensor, weights_BGE: Tensor) -> list[Tensor]:
    """Refuses outputs and weights that do not fit; returns the operator's list of `y`."""
    tensors = _check_outputs(y)
    stacked = isinstance(y, Tensor)
    E = y.shape[0] if stacked else len(tensors)
    B = tensors[0].shape[-2]
    check_dims("weights_BGE", weights_BGE, "BGE")
    check_float("weights_BGE", weights_BGE)
    check_shape(
        "weights_BGE", weights_BGE, [B, weights_BGE.shape[1], E], "y (B samples, E experts)"
    )
    check_device("weights_BGE", weights_BGE, tensors[0].device, "y")
    return tensors


def _check_outputs(y: Sequence[Tensor] | Tensor) -> list[Tensor]:
    """Returns the operator's list: the E tensors, or the stacked one alone."""
    if isinstance(y, Tensor):
        check_dims("y", y, "EBO")
        check_float("y", y)
        if y.shape[0] == 0:
            raise ValueError("y: expected at least one expert, got none")
        return [y]
    tensors = list(y)
    if not tensors:
        raise ValueError("y: expected at least one expert, got none")
    check_dims("y[0]", tensors[0], "BO")
    check_float("y[0]", tensors[0])
    for expert, tensor in enumerate(tensors[1:], start=1):
        check_shape(f"y[{expert}]", tensor, tensors[0].shape, "y[0]")
        check_device(f"y[{expert}]", tensor, tensors[0].device, "y[0]")
        if tensor.dtype != tensors[0].dtype:
            raise ValueError(
                f"y[{expert}]: expected dtype {tensors[0].dtype} as y[0], got {tensor.dtype}"
            )
    return tensors


def _fake(y: Sequence[Tensor], weights_BGE: Tensor) -> Tensor:
    B, G, _ = weights_BGE.shape
    return y[0].new_empty(G, B, y[0].shape[-1]).transpose(0, 1)


def _fake_backward(
    grad_BGO: Tensor, y: Sequence[Tensor], weights_BGE: Tensor
) -> tuple[list[Tensor], Tensor]:
    return [part.new_empty(part.shape) for part in y], weights_BGE.new_empty(weights_BGE.shape)


def _setup_context(ctx: Any, inputs: tuple[Sequence[Tensor], Tensor], output: Tensor) -> None:
    y, weights_BGE = inputs
    ctx.save_for_backward(*y, weights_BGE)


def _backward(ctx: Any, grad_BGO: Tensor) -> tuple[list[Tensor], Tensor]:
    *y, weights_BGE = ctx.saved_tensors
    return torch.ops.mmoe.dense_combine_backward(grad_BGO, y, weights_BGE)


define("dense_combine(Tensor[] y, Tensor weights_BGE) -> Tensor", _fake)
define(
    "dense_combine_backward(Tensor grad_BGO, Tensor[] y, Tensor weights_BGE) -> (Tensor[], Tensor)",
    _fake_backward,
)
register_autograd("dense_combine", _backward, _setup_context)
