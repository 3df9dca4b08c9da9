"""`permute` and `unpermute`: rows in the order of a plan, and back to one row per sample."""

from typing import Any

import torch
from torch import Tensor

from mmoe.ops._checks import check_device, check_dims, check_float, check_int32, check_shape
from mmoe.ops._library import LIBRARY, define
from mmoe.ops.route_plan import RoutePlan


def permute(x_BD: Tensor, plan: RoutePlan) -> Tensor:
    """Gathers one row for every pair of a plan, so that each expert's rows lie side by side.

    x_PD[p] = x[rows[p]], and 0 where rows[p] is -1 (the plan's tail)

    The gradient is `unpermute`: a sample's pairs are added up in a fixed order, in float32 (float64
    for float64), so the same input gives the same bits. It counts the pairs that a slot names,
    which in a plan from `route_plan` are all of them.

    Args:
        x_BD: float32, bfloat16 or float64, a row per sample.
        plan: From `route_plan`; cutting rows_P at the number of pairs leaves out the tail.

    Returns:
        x_PD in x's dtype.

    Raises:
        ValueError: On shapes, dtypes or devices that do not fit, or (CPU) a row outside [-1, B). On
            a GPU such a row stops the kernel, as an index out of range does in PyTorch.

    Example:
        >>> import torch
        >>> from mmoe.ops import permute, route_plan
        >>> picks = torch.tensor([[[0], [2]], [[2], [2]]], dtype=torch.int32)  # 2 samples, 2 gates
        >>> plan = route_plan(picks, num_experts=3)
        >>> permute(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), plan).tolist()
        [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]
    """
    check_dims("x_BD", x_BD, "BD")
    check_plan("x_BD", x_BD, plan)
    expected = [x_BD.shape[0], *plan.slots_BGK.shape[1:]]
    check_shape("slots_BGK", plan.slots_BGK, expected, "x_BD (B samples)")
    return torch.ops.mmoe.permute(x_BD, plan.rows_P, plan.slots_BGK)


def unpermute(y_PD: Tensor, plan: RoutePlan) -> Tensor:
    """Adds up the rows of a plan per sample, each pair once: the adjoint of `permute`.

    y_BD[b] = sum of y[p] over the distinct p >= 0 among slots[b], in increasing p

    Sums are taken in float32 (float64 for float64 input), in the order of the pairs, so the same
    input gives the same bits. Rows that no slot names, such as the tail, are never read. The
    gradient is `permute`, with 0 for the rows that no slot names.

    Args:
        y_PD: float32, bfloat16 or float64, a row per pair of the plan.
        plan: From `route_plan`, cut to the rows of y_PD.

    Returns:
        y_BD in y's dtype; 0 for a sample without pairs.

    Raises:
        ValueError: On shapes, dtypes or devices that do not fit, or (CPU) a slot outside [-1, P) or
            one whose pair is another sample's. On a GPU such a slot stops the kernel or gives a
            meaningless row.

    Example:
        >>> import torch
        >>> from mmoe.ops import route_plan, unpermute
        >>> picks = torch.tensor([[[0], [2]], [[2], [2]]], dtype=torch.int32)  # 2 samples, 2 gates
        >>> plan = route_plan(picks, num_experts=3)
        >>> unpermute(torch.tensor([[1.0], [10.0], [100.0], [torch.nan]]), plan).tolist()
        [[11.0], [100.0]]
    """
    check_dims("y_PD", y_PD, "PD")
    check_plan("y_PD", y_PD, plan)
    check_shape("rows_P", plan.rows_P, y_PD.shape[:1], "y_PD (P pairs)")
    return torch.ops.mmoe.unpermute(y_PD, plan.rows_P, plan.slots_BGK)


def check_plan(name: str, rows: Tensor, plan: RoutePlan) -> None:
    """Refuses a plan whose tensors do not fit these rows; shared with `gathered_mm`."""
    check_float(name, rows)
    check_dims("rows_P", plan.rows_P, "P")
    check_int32("rows_P", plan.rows_P)
    check_dims("slots_BGK", plan.slots_BGK, "BGK")
    check_int32("slots_BGK", plan.slots_BGK)
    check_device("rows_P", plan.rows_P, rows.device, name)
    check_device("slots_BGK", plan.slots_BGK, rows.device, name)


def _fake_permute(x_BD: Tensor, rows_P: Tensor, slots_BGK: Tensor) -> Tensor:
    return x_BD.new_empty(rows_P.shape[0], x_BD.shape[1])


def _fake_unpermute(y_PD: Tensor, rows_P: Tensor, slots_BGK: Tensor) -> Tensor:
    return y_PD.new_empty(slots_BGK.shape[0], y_PD.shape[1])


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _backward_of_permute(ctx: Any, grad_PD: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.mmoe.unpermute(grad_PD, *ctx.saved_tensors), None, None


def _backward_of_unpermute(ctx: Any, grad_BD: Tensor) -> tuple[Tensor, None, None]:
    rows_P, slots_BGK = ctx.saved_tensors
    return torch.ops.mmoe.permute(grad_BD, _named(rows_P, slots_BGK), slots_BGK), None, None


def _named(rows_P: Tensor, slots_BGK: Tensor) -> Tensor:
    """Gives the rows of the pairs that a slot names, and -1 for the others."""
    P = len(rows_P)
    # Entry P takes what unused picks write, and is cut off.
    targets = torch.where(slots_BGK >= 0, slots_BGK, P).flatten().long()
    named_P = rows_P.new_zeros(P + 1, dtype=torch.bool).scatter(0, targets, True)[:P]
    return torch.where(named_P, rows_P, -1)


define("permute(Tensor x_BD, Tensor rows_P, Tensor slots_BGK) -> Tensor", _fake_permute)
define("unpermute(Tensor y_PD, Tensor rows_P, Tensor slots_BGK) -> Tensor", _fake_unpermute)
torch.library.register_autograd(
    "mmoe::permute", _backward_of_permute, setup_context=_setup_context, lib=LIBRARY
)
torch.library.register_autograd(
    "mmoe::unpermute", _backward_of_unpermute, setup_context=_setup_context, lib=LIBRARY
)
