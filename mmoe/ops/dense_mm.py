"""`dense_mm`: every expert's layer on all rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import check_device, check_dims, check_float, check_shape
from mmoe.ops._library import define
from mmoe.ops.grouped_mm import FusedActivation, check_layer
from mmoe.ops.reference import keeps_z


def dense_mm(
    x: Tensor | Sequence[Tensor],
    weight_EDH: Tensor,
    bias_EH: Tensor | None = None,
    activation: FusedActivation = "none",
) -> list[Tensor]:
    """Sends all rows through the layer of every expert, bias and activation within the product.

    y[e] = activation(x[e] @ W[e] + b[e]), where x[e] is x itself if all experts read the same.

    Sums are taken in float32 (float64 for float64); the gradient of a shared x is summed over the
    experts before it is rounded. On the CPU a row's result depends on that row alone.

    Args:
        x: One tensor [B, D] for all experts, or E of them, a list or one x_EBD, whose gradient is
            then one tensor too; float32, bfloat16 or float64.
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows: it is then rounded while it is
            read, and its gradient is float32.
        bias_EH: The weight's dtype.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        E tensors y_BH in x's dtype.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation.

    Example:
        >>> import torch
        >>> from mmoe.ops import dense_mm
        >>> y = dense_mm(torch.ones(2, 3), torch.ones(4, 3, 5), activation="relu")
        >>> len(y), y[0].shape, float(y[0][0, 0])
        (4, torch.Size([2, 5]), 3.0)

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equation 6: the expert networks f_i(x).
    """
    tensors = check_rows(x, weight_EDH, bias_EH, activation)
    return torch.ops.mmoe.dense_mm(tensors, weight_EDH, bias_EH, activation)[0]


def check_rows(
    x: Tensor | Sequence[Tensor], weight_EDH: Tensor, bias_EH: Tensor | None, activation: str
) -> list[Tensor]:
    """Refuses rows that do not fit a layer; returns the operator's list; as in `dense_mlp`."""
    check_dims("weight_EDH", weight_EDH, "EDH")
    tensors = [x] if isinstance(x, Tensor) else list(x)
    E = weight_EDH.shape[0]
    if isinstance(x, Tensor) and x.dim() == 3:
        check_shape("x", x, [E, *x.shape[1:]], "weight_EDH")
        check_float("x", x)
        check_layer(x, weight_EDH, bias_EH, activation, name="x")
        return tensors
    if not tensors or len(tensors) not in (1, E):
        raise ValueError(f"x: expected one tensor or {E}, one per expert, got {len(tensors)}")
    check_dims("x[0]", tensors[0], "BD")
    check_float("x[0]", tensors[0])
    for expert, tensor in enumerate(tensors[1:], start=1):
        check_shape(f"x[{expert}]", tensor, tensors[0].shape, "x[0]")
        check_device(f"x[{expert}]", tensor, tensors[0].device, "x[0]")
        if tensor.dtype != tensors[0].dtype:
            raise ValueError(
                f"x[{expert}]: expected dtype {tensors[0].dtype} as x[0], got {tensor.dtype}"
            )
    check_layer(tensors[0], weight_EDH, bias_EH, activation, name="x[0]")
    return tensors


def _fake(
    x: Sequence[Tensor], weight_EDH: Tensor, bias_EH: Tensor | None, activation: str
) -> tuple[list[Tensor], list[Tensor]]:
    E, _, H = weight_EDH.shape
    y = [x[0].new_empty(x[0].shape[-2], H) for _ in range(E)]
    return y, [torch.empty_like(part) for part in y] if keeps_z(activation) else []


def _fake_backward(
    grad: Sequence[Tensor],
    x: Sequence[Tensor],
    weight_EDH: Tensor,
    y: Sequence[Tensor],
    z: Sequence[Tensor],
    activation: str,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[list[Tensor], Tensor, Tensor]:
    E, D, H = weight_EDH.shape
    return (
        [part.new_empty(part.shape) for part in x] if need_x else [],
        weight_EDH.new_empty((E, D, H) if need_weight else 0),
        weight_EDH.new_empty((E, H) if need_bias else 0),
    )


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], list[Tensor]]
) -> None:
    x, weight_EDH, _, activation = inputs
    y, z = output
    ctx.mark_non_differentiable(*z)
    ctx.save_for_backward(weight_EDH, *x, *y, *z)
    ctx.sources, ctx.activation = len(x), activation


def _backward(ctx: Any, grad: list[Tensor], _: Any) -> tuple[Any, ...]:
    weight_EDH, *saved = ctx.saved_tensors
    E, S = len(weight_EDH), ctx.sources
    x, y, z = saved[:S], saved[S : S + E], saved[S + E :]
    x_needs, need_weight, need_bias, _ = ctx.needs_input_grad
    need_x = any(x_needs) if isinstance(x_needs, list | tuple) else x_needs
    grad_x, grad_weight, grad_bias = torch.ops.mmoe.dense_mm_backward(
        grad, x, weight_EDH, y, z, ctx.activation, need_x, need_weight, need_bias
    )
    return (
        grad_x if need_x else [None] * S,
        grad_weight if need_weight else None,
        grad_bias if need_bias else None,
        None,
    )


define(
    "dense_mm(Tensor[] x, Tensor weight_EDH, Tensor? bias_EH, str activation)"
    " -> (Tensor[], Tensor[])",
    _fake,
)
define(
    "dense_mm_backward(Tensor[] grad, Tensor[] x, Tensor weight_EDH, Tensor[] y, Tensor[] z,"
    " str activation, bool need_x, bool need_weight, bool need_bias) -> (Tensor[], Tensor, Tensor)",
    _fake_backward,
)
register_autograd("dense_mm", _backward, _setup_context)
