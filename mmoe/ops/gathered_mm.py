"""`gathered_mm`: every expert's layer on the rows that a plan names, without a copy of them."""

from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import check_dims, check_float, check_shape
from mmoe.ops._library import define
from mmoe.ops.grouped_mm import (
    FusedActivation,
    check_layer,
    check_offsets,
    new_gradients,
    new_outputs,
)
from mmoe.ops.permute import check_plan
from mmoe.ops.route_plan import RoutePlan


def gathered_mm(
    x_BD: Tensor,
    plan: RoutePlan,
    weight_EDH: Tensor,
    bias_EH: Tensor | None = None,
    activation: FusedActivation = "none",
) -> Tensor:
    """Sends the rows of a plan's pairs through their experts' layers, each read where it lies.

    y[p] = activation(x[rows[p]] @ W[e] + b[e]) for offsets[e] ≤ p < offsets[e + 1]

    The numbers of `grouped_mm(permute(x_BD, plan), …)`, on the CPU to the bit, forward and
    backward; but the permuted rows are never written to memory, nor kept for the gradient. (On a
    GPU where `grouped_mm` takes PyTorch's product, that one reads a copy, which is not kept.)
    The gradient of x adds up a sample's pairs as `unpermute` does.

    Args:
        x_BD: float32, bfloat16 or float64, a row per sample.
        plan: From `route_plan`; cutting rows_P at the number of pairs leaves out the tail. A pair
            of row -1 reads zeros.
        weight_EDH: As `grouped_mm`'s.
        bias_EH: Likewise.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        y_PH in x's dtype; 0 past the last offset.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation; on the CPU
            also offsets that fall, or leave the rows, and a row outside [-1, B).

    Example:
        >>> import torch
        >>> from mmoe.ops import gathered_mm, route_plan
        >>> picks = torch.tensor([[[0], [2]], [[2], [2]]], dtype=torch.int32)  # 2 samples, 2 gates
        >>> plan = route_plan(picks, num_experts=3)
        >>> weight_EDH = torch.tensor([1.0, 0.0, -10.0]).view(3, 1, 1)
        >>> gathered_mm(torch.tensor([[1.0], [2.0]]), plan, weight_EDH).flatten().tolist()
        [1.0, -10.0, -20.0, 0.0]

    Source: Tan et al., "Scattered mixture-of-experts implementation" (arXiv 2403.08245), section
        3.1, for products that read their rows by number.
    """
    check_dims("x_BD", x_BD, "BD")
    check_float("x_BD", x_BD)
    check_plan("x_BD", x_BD, plan)
    check_shape(
        "slots_BGK",
        plan.slots_BGK,
        [x_BD.shape[0], *plan.slots_BGK.shape[1:]],
        "x_BD (B samples)",
    )
    check_layer(x_BD, weight_EDH, bias_EH, activation, name="x_BD")
    check_offsets(plan.offsets_E1, x_BD, weight_EDH, name="x_BD")
    return torch.ops.mmoe.gathered_mm(x_BD, *plan, weight_EDH, bias_EH, activation)[0]


def _fake(
    x_BD: Tensor,
    rows_P: Tensor,
    offsets_E1: Tensor,
    slots_BGK: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None,
    activation: str,
) -> tuple[Tensor, Tensor]:
    return new_outputs(x_BD, rows_P.shape[0], weight_EDH, activation)


def _fake_backward(
    grad_PH: Tensor,
    x_BD: Tensor,
    rows_P: Tensor,
    offsets_E1: Tensor,
    weight_EDH: Tensor,
    y_PH: Tensor,
    z_PH: Tensor,
    activation: str,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return new_gradients(x_BD, rows_P.shape[0], weight_EDH, need_x, need_weight, need_bias)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_BD, rows_P, offsets_E1, slots_BGK, weight_EDH, _, activation = inputs
    y_PH, z_PH = output
    ctx.mark_non_differentiable(z_PH)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_BD, rows_P, offsets_E1, weight_EDH, y_PH, z_PH, slots_BGK)
    ctx.activation = activation


def _backward(ctx: Any, grad_PH: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    need_x, _, _, _, need_weight, need_bias, _ = ctx.needs_input_grad
    if grad_PH is None:
        return (None,) * 7
    *layer, slots_BGK = ctx.saved_tensors
    grad_x_PD, grad_weight, grad_bias = torch.ops.mmoe.gathered_mm_backward(
        grad_PH, *layer, ctx.activation, need_x, need_weight, need_bias
    )
    rows_P = layer[1]
    return (
        torch.ops.mmoe.unpermute(grad_x_PD, rows_P, slots_BGK) if need_x else None,
        None,
        None,
        None,
        grad_weight if need_weight else None,
        grad_bias if need_bias else None,
        None,
    )


define(
    "gathered_mm(Tensor x_BD, Tensor rows_P, Tensor offsets_E1, Tensor slots_BGK,"
    " Tensor weight_EDH, Tensor? bias_EH, str activation) -> (Tensor, Tensor)",
    _fake,
)
define(
    "gathered_mm_backward(Tensor grad_PH, Tensor x_BD, Tensor rows_P, Tensor offsets_E1,"
    " Tensor weight_EDH, Tensor y_PH, Tensor z_PH, str activation, bool need_x, bool need_weight,"
    " bool need_bias) -> (Tensor, Tensor, Tensor)",
    _fake_backward,
)
register_autograd("gathered_mm", _backward, _setup_context)
