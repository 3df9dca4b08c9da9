"""`shared_mm`: every expert's layer on rows whose owners have a part of the product already."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import check_device, check_dims, check_float, check_shape
from mmoe.ops._library import define
from mmoe.ops.grouped_mm import FusedActivation, check_layer
from mmoe.ops.reference import keeps_z
from mmoe.ops.repeat_rows import Owners


def shared_mm(
    x_BD: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None,
    shared: Sequence[Tensor],
    owners: Owners,
    activation: FusedActivation = "none",
) -> list[Tensor]:
    """Sends rows through the layer of every expert, and adds what their owners have of it.

    y[e][b] = activation(x[b] @ W[e] + b[e] + shared[e][owner of b])

    So `shared` is the product of columns that all rows of an owner share, computed once for them.
    Its gradient is added up over the rows of each owner in a fixed order. Sums are taken in float32
    (float64 for float64). On the CPU a row's result depends on that row and its owner's alone.

    Args:
        x_BD: float32, bfloat16 or float64.
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows.
        bias_EH: The weight's dtype.
        shared: E tensors [Q, H] in x's dtype.
        owners: Which of the Q owners each row belongs to.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        E tensors y_BH in x's dtype.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation.

    Example:
        >>> import torch
        >>> from mmoe.ops import shared_mm
        >>> from mmoe.ops.repeat_rows import Owners
        >>> owners = Owners(torch.tensor([0, 1, 1]), 2)
        >>> shared = [torch.tensor([[10.0], [20.0]])]
        >>> shared_mm(torch.ones(3, 2), torch.ones(1, 2, 1), None, shared, owners)[0].flatten()
        tensor([12., 22., 22.])
    """
    check_dims("x_BD", x_BD, "BD")
    check_float("x_BD", x_BD)
    check_layer(x_BD, weight_EDH, bias_EH, activation, name="x_BD")
    check_shared(x_BD, weight_EDH, shared, owners)
    learns = torch.is_grad_enabled()
    return torch.ops.mmoe.shared_mm(
        x_BD,
        weight_EDH,
        bias_EH,
        list(shared),
        owners.of_B.int(),
        owners.order_B.int() if learns else None,
        owners.bounds.int() if learns else None,
        activation,
    )[0]


def check_shared(
    x_BD: Tensor, weight_EDH: Tensor, shared: Sequence[Tensor], owners: Owners
) -> None:
    """Refuses what does not fit the rows and their layer; shared with `dense_mlp`."""
    check_dims("x_BD", x_BD, "BD")
    E, _, H = weight_EDH.shape
    if len(shared) != E:
        raise ValueError(f"shared: expected {E} tensors, one per expert, got {len(shared)}")
    for expert, tensor in enumerate(shared):
        check_shape(f"shared[{expert}]", tensor, [owners.count, H], "owners and weight_EDH")
        check_device(f"shared[{expert}]", tensor, x_BD.device, "x_BD")
        if tensor.dtype != x_BD.dtype:
            raise ValueError(
                f"shared[{expert}]: expected dtype {x_BD.dtype} as x_BD, got {tensor.dtype}"
            )
    check_shape("owners", owners.of_B, [x_BD.shape[0]], "x_BD")
    check_device("owners", owners.of_B, x_BD.device, "x_BD")


def _fake(
    x_BD: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None,
    shared: Sequence[Tensor],
    owners_B: Tensor,
    order_B: Tensor | None,
    bounds: Tensor | None,
    activation: str,
) -> tuple[list[Tensor], list[Tensor]]:
    E, _, H = weight_EDH.shape
    y = [x_BD.new_empty(x_BD.shape[0], H) for _ in range(E)]
    return y, [torch.empty_like(part) for part in y] if keeps_z(activation) else []


def _fake_sums(
    grad: Sequence[Tensor],
    y: Sequence[Tensor],
    z: Sequence[Tensor],
    order_B: Tensor,
    bounds: Tensor,
    activation: str,
) -> list[Tensor]:
    return [part.new_empty(bounds.shape[0] - 1, part.shape[1]) for part in grad]


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], list[Tensor]]
) -> None:
    x_BD, weight_EDH, _, _, _, order_B, bounds, activation = inputs
    y, z = output
    ctx.mark_non_differentiable(*z)
    ctx.save_for_backward(x_BD, weight_EDH, order_B, bounds, *y, *z)
    ctx.activation = activation


def _backward(ctx: Any, grad: list[Tensor], _: Any) -> tuple[Any, ...]:
    x_BD, weight_EDH, order_B, bounds, *saved = ctx.saved_tensors
    y, z = saved[: len(weight_EDH)], saved[len(weight_EDH) :]
    need_x, need_weight, need_bias, shared, *_ = ctx.needs_input_grad
    grad_x, grad_weight, grad_bias = torch.ops.mmoe.dense_mm_backward(
        grad, [x_BD], weight_EDH, y, z, ctx.activation, need_x, need_weight, need_bias
    )
    grad_shared: Any = [None] * len(grad)
    if any(shared) if isinstance(shared, list | tuple) else shared:
        grad_shared = torch.ops.mmoe.shared_sums(grad, y, z, order_B, bounds, ctx.activation)
    return (
        grad_x[0] if need_x else None,
        grad_weight if need_weight else None,
        grad_bias if need_bias else None,
        grad_shared,
        None,
        None,
        None,
        None,
    )


define(
    "shared_mm(Tensor x_BD, Tensor weight_EDH, Tensor? bias_EH, Tensor[] shared, Tensor owners_B,"
    " Tensor? order_B, Tensor? bounds, str activation) -> (Tensor[], Tensor[])",
    _fake,
)
define(
    "shared_sums(Tensor[] grad, Tensor[] y, Tensor[] z, Tensor order_B, Tensor bounds,"
    " str activation) -> Tensor[]",
    _fake_sums,
)
register_autograd("shared_mm", _backward, _setup_context)
