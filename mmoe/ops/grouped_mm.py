"""`grouped_mm`: every expert's layer on the rows that were routed to it."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import (
    FLOAT_DTYPES,
    accumulate_dtype,
    check_device,
    check_dims,
    check_float,
    check_int32,
    check_shape,
)
from mmoe.ops._library import define
from mmoe.ops.reference import keeps_z

FusedActivation = Literal["none", "relu", "gelu", "silu"]


def grouped_mm(
    x_PD: Tensor,
    offsets_E1: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None = None,
    activation: FusedActivation = "none",
) -> Tensor:
    """Sends each expert's rows through its own layer, bias and activation within the product.

    y[p] = activation(x[p] @ W[e] + b[e]) for offsets[e] ≤ p < offsets[e + 1]

    Sums are taken in float32 (float64 for float64). On the CPU a row's result depends on that row
    alone: not on its place, the other rows or the number of threads.

    Args:
        x_PD: float32, bfloat16 or float64 rows, those of one expert next to each other.
        offsets_E1: int32, rising from 0; rows past the last offset are not read.
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows: it is then rounded while it is
            read, and its gradient is float32.
        bias_EH: The weight's dtype.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        y_PH in x's dtype; 0 past the last offset.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation; on the CPU
            also offsets that fall, or leave the rows.

    Example:
        >>> import torch
        >>> from mmoe.ops import grouped_mm
        >>> x_PD = torch.tensor([[1.0], [2.0], [3.0]])
        >>> offsets_E1 = torch.tensor([0, 1, 3], dtype=torch.int32)
        >>> grouped_mm(x_PD, offsets_E1, torch.tensor([[[1.0]], [[-10.0]]])).flatten().tolist()
        [1.0, -20.0, -30.0]

    Source: Gale et al., "MegaBlocks: efficient sparse training with mixture-of-experts" (MLSys
        2023), section 4, for the dropless form.
    """
    check_dims("x_PD", x_PD, "PD")
    check_float("x_PD", x_PD)
    check_layer(x_PD, weight_EDH, bias_EH, activation)
    check_offsets(offsets_E1, x_PD, weight_EDH)
    return torch.ops.mmoe.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, activation)[0]


def check_layer(
    x: Tensor, weight_EDH: Tensor, bias_EH: Tensor | None, activation: str, name: str = "x_PD"
) -> None:
    """Refuses weights that do not fit the rows; shared with `dense_mm`."""
    check_activation(activation)
    check_dims("weight_EDH", weight_EDH, "EDH")
    E, _, H = weight_EDH.shape
    if E < 1:
        raise ValueError("weight_EDH: expected at least one expert, got none")
    check_shape("weight_EDH", weight_EDH, [E, x.shape[-1], H], f"the width of {name}")
    check_device("weight_EDH", weight_EDH, x.device, name)
    if weight_EDH.dtype not in (x.dtype, accumulate_dtype(x.dtype)):
        allowed = " or ".join(
            str(d) for d in FLOAT_DTYPES if d in (x.dtype, accumulate_dtype(x.dtype))
        )
        raise ValueError(
            f"weight_EDH: expected dtype {allowed} beside {name} in {x.dtype}, "
            f"got {weight_EDH.dtype}"
        )
    if bias_EH is not None:
        check_shape("bias_EH", bias_EH, [E, H], "weight_EDH")
        check_device("bias_EH", bias_EH, x.device, name)
        if bias_EH.dtype != weight_EDH.dtype:
            raise ValueError(
                f"bias_EH: expected dtype {weight_EDH.dtype} as weight_EDH, got {bias_EH.dtype}"
            )


def check_activation(activation: str) -> None:
    """Refuses activations that products do not apply; shared with `mixed_towers`."""
    if activation not in get_args(FusedActivation):
        known = ", ".join(get_args(FusedActivation))
        raise ValueError(f"activation: expected one of {known}, got {activation!r}")


def check_offsets(offsets_E1: Tensor, x: Tensor, weight_EDH: Tensor, name: str = "x_PD") -> None:
    """Refuses offsets that do not fit the layer; shared with `gathered_mm`."""
    check_dims("offsets_E1", offsets_E1, ["E + 1"])
    check_int32("offsets_E1", offsets_E1)
    check_device("offsets_E1", offsets_E1, x.device, name)
    check_shape("offsets_E1", offsets_E1, [weight_EDH.shape[0] + 1], "the experts of weight_EDH")


def new_outputs(
    x: Tensor, rows: int | torch.SymInt, weight_EDH: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Returns y and z of a layer without their numbers; shared with `gathered_mm`."""
    y_PH = x.new_empty(rows, weight_EDH.shape[2])
    return y_PH, x.new_empty(y_PH.shape if keeps_z(activation) else 0)


def new_gradients(
    x: Tensor,
    rows: int | torch.SymInt,
    weight_EDH: Tensor,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a layer's gradients without their numbers; shared with `gathered_mm`."""
    E, D, H = weight_EDH.shape
    return (
        x.new_empty((rows, D) if need_x else 0),
        weight_EDH.new_empty((E, D, H) if need_weight else 0),
        weight_EDH.new_empty((E, H) if need_bias else 0),
    )


def _fake(
    x_PD: Tensor, offsets_E1: Tensor, weight_EDH: Tensor, bias_EH: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    return new_outputs(x_PD, x_PD.shape[0], weight_EDH, activation)


def _fake_backward(
    grad_PH: Tensor,
    x_PD: Tensor,
    offsets_E1: Tensor,
    weight_EDH: Tensor,
    y_PH: Tensor,
    z_PH: Tensor,
    activation: str,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return new_gradients(x_PD, x_PD.shape[0], weight_EDH, need_x, need_weight, need_bias)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_PD, offsets_E1, weight_EDH, _, activation = inputs
    y_PH, z_PH = output
    ctx.mark_non_differentiable(z_PH)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_PD, offsets_E1, weight_EDH, y_PH, z_PH)
    ctx.activation = activation


def _backward(ctx: Any, grad_PH: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    need_x, _, need_weight, need_bias, _ = ctx.needs_input_grad
    if grad_PH is None:
        return (None,) * 5
    x_PD, offsets_E1, weight_EDH, y_PH, z_PH = ctx.saved_tensors
    grad_x, grad_weight, grad_bias = torch.ops.mmoe.grouped_mm_backward(
        grad_PH,
        x_PD,
        offsets_E1,
        weight_EDH,
        y_PH,
        z_PH,
        ctx.activation,
        need_x,
        need_weight,
        need_bias,
    )
    return (
        grad_x if need_x else None,
        None,
        grad_weight if need_weight else None,
        grad_bias if need_bias else None,
        None,
    )


define(
    "grouped_mm(Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH, Tensor? bias_EH,"
    " str activation) -> (Tensor, Tensor)",
    _fake,
)
define(
    "grouped_mm_backward(Tensor grad_PH, Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH,"
    " Tensor y_PH, Tensor z_PH, str activation, bool need_x, bool need_weight, bool need_bias)"
    " -> (Tensor, Tensor, Tensor)",
    _fake_backward,
)
register_autograd("grouped_mm", _backward, _setup_context)
