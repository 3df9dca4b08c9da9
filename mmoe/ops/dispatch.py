"""Rows to experts and back: `route_plan`, `permute`, `gated_combine`, `dense_combine`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmoe.ops._checks import (
    accumulate_dtype,
    check_alike,
    check_device,
    check_dims,
    check_float,
    check_int32,
    check_shape,
)
from mmoe.ops._library import LIBRARY, define, empties_like, register_autograd, save_tensors


class RoutePlan(NamedTuple):
    """Plan of a batch's distinct (sample, expert) pairs, by expert, then by sample.

    Attributes:
        rows_P: int32, the sample of pair i; -1 from the last pair (number R = offsets_E1[E]) on.
        offsets_E1: int32, expert e owns the pairs from offsets_E1[e] up to offsets_E1[e + 1].
        slots_BGK: int32, the pair that serves a pick; -1 for a pick that is not used.
    """

    rows_P: Tensor
    offsets_E1: Tensor
    slots_BGK: Tensor


def route_plan(experts_BGK: Tensor, num_experts: int) -> RoutePlan:
    """Numbers the distinct (sample, expert) pairs that the gates' picks need.

    Pairs are ordered by (expert, sample) and none occurs twice, however many gates asked for it:
    slots[b, g, k] = #{(e, s) wanted : (e, s) < (experts[b, g, k], b)}. The shapes depend on shapes
    alone (P = B * min(G * K, E)), so nothing is copied to the host.

    Args:
        experts_BGK: int32, the expert of every pick in [0, E), or -1 for a pick that is not used.
        num_experts: E, from 1 to 2,147,483,647.

    Returns:
        The plan; deterministic, the same on CPU and CUDA.

    Raises:
        ValueError: On another shape or dtype, or (CPU) an expert outside [-1, E). On a GPU such an
            expert stops the kernel, as an index out of range does in PyTorch.

    Example:
        >>> import torch
        >>> from mmoe.ops import route_plan
        >>> picks = torch.tensor([[[0], [2]], [[2], [2]]], dtype=torch.int32)  # 2 samples, 2 gates
        >>> plan = route_plan(picks, num_experts=3)
        >>> plan.rows_P.tolist(), plan.offsets_E1.tolist()
        ([0, 0, 1, -1], [0, 1, 1, 3])
        >>> plan.slots_BGK.flatten().tolist()
        [0, 1, 2, 2]
    """
    check_int32("experts_BGK", experts_BGK, "BGK")
    B, G, K = experts_BGK.shape
    if G < 1 or K < 1:
        raise ValueError(
            f"experts_BGK: expected at least one gate and one pick, got shape {[B, G, K]}"
        )
    if not 1 <= num_experts < 2**31:
        raise ValueError(f"num_experts: expected 1 to {2**31 - 1}, got {num_experts}")
    pairs = B * min(G * K, num_experts)
    # In a trace B may be any number, which the comparison would bound; the kernels check as well.
    if not torch.compiler.is_compiling() and pairs >= 2**31:
        raise ValueError(
            f"experts_BGK: {pairs} pairs do not fit in int32; split the batch of {B} samples"
        )
    return RoutePlan(*torch.ops.mmoe.route_plan(experts_BGK, num_experts))


def _fake_route_plan(experts_BGK: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    B, G, K = experts_BGK.shape
    rows_P = experts_BGK.new_empty(B * min(G * K, num_experts))
    return rows_P, experts_BGK.new_empty(num_experts + 1), experts_BGK.new_empty(B, G, K)


define(
    "route_plan(Tensor experts_BGK, int num_experts) -> (Tensor, Tensor, Tensor)", _fake_route_plan
)


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
    check_int32("rows_P", plan.rows_P, "P")
    check_int32("slots_BGK", plan.slots_BGK, "BGK")
    check_device("rows_P", plan.rows_P, rows.device, name)
    check_device("slots_BGK", plan.slots_BGK, rows.device, name)


def _fake_permute(x_BD: Tensor, rows_P: Tensor, **rest: Any) -> Tensor:
    return x_BD.new_empty(rows_P.shape[0], x_BD.shape[1])


def _fake_unpermute(y_PD: Tensor, slots_BGK: Tensor, **rest: Any) -> Tensor:
    return y_PD.new_empty(slots_BGK.shape[0], y_PD.shape[1])


def _permute_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
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
    "mmoe::permute", _backward_of_permute, setup_context=_permute_context, lib=LIBRARY
)
torch.library.register_autograd(
    "mmoe::unpermute", _backward_of_unpermute, setup_context=_permute_context, lib=LIBRARY
)


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
    check_float("y_PO", y_PO, "PO")
    check_int32("slots_BGK", slots_BGK, "BGK")
    check_shape("weights_BGK", weights_BGK, slots_BGK.shape, "slots_BGK")
    check_float("weights_BGK", weights_BGK)
    check_device("slots_BGK", slots_BGK, y_PO.device, "y_PO")
    check_device("weights_BGK", weights_BGK, y_PO.device, "y_PO")
    weights_BGK = weights_BGK.to(accumulate_dtype(y_PO.dtype))
    return torch.ops.mmoe.gated_combine(y_PO, slots_BGK, weights_BGK)


def _fake_gated_combine(y_PO: Tensor, slots_BGK: Tensor, **rest: Any) -> Tensor:
    return y_PO.new_empty(slots_BGK.shape[0], slots_BGK.shape[1], y_PO.shape[1])


def _gated_combine_backward(ctx: Any, grad_BGO: Tensor) -> tuple[Tensor, None, Tensor]:
    grad_y_PO, grad_weights_BGK = torch.ops.mmoe.gated_combine_backward(
        grad_BGO, *ctx.saved_tensors
    )
    return grad_y_PO, None, grad_weights_BGK


define(
    "gated_combine(Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK) -> Tensor",
    _fake_gated_combine,
)
define(
    "gated_combine_backward(Tensor grad_BGO, Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK)"
    " -> (Tensor, Tensor)",
    empties_like("y_PO", "weights_BGK"),
)
register_autograd("gated_combine", _gated_combine_backward, save_tensors)


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
    if isinstance(y, Tensor):
        check_float("y", y, "EBO")
        tensors, E = [y], y.shape[0]
    else:
        tensors = list(y)
        E = len(tensors)
    if E == 0:
        raise ValueError("y: expected at least one expert, got none")
    if not isinstance(y, Tensor):
        check_float("y[0]", tensors[0], "BO")
        check_alike("y", tensors)
    B = tensors[0].shape[-2]
    check_float("weights_BGE", weights_BGE, "BGE")
    check_shape(
        "weights_BGE", weights_BGE, [B, weights_BGE.shape[1], E], "y (B samples, E experts)"
    )
    check_device("weights_BGE", weights_BGE, tensors[0].device, "y")
    return tensors


def _fake_dense_combine(y: Sequence[Tensor], weights_BGE: Tensor) -> Tensor:
    B, G, _ = weights_BGE.shape
    return y[0].new_empty(G, B, y[0].shape[-1]).transpose(0, 1)


def _dense_combine_context(
    ctx: Any, inputs: tuple[Sequence[Tensor], Tensor], output: Tensor
) -> None:
    y, weights_BGE = inputs
    ctx.save_for_backward(*y, weights_BGE)


def _dense_combine_backward(ctx: Any, grad_BGO: Tensor) -> tuple[list[Tensor], Tensor]:
    *y, weights_BGE = ctx.saved_tensors
    return torch.ops.mmoe.dense_combine_backward(grad_BGO, y, weights_BGE)


define("dense_combine(Tensor[] y, Tensor weights_BGE) -> Tensor", _fake_dense_combine)
define(
    "dense_combine_backward(Tensor grad_BGO, Tensor[] y, Tensor weights_BGE) -> (Tensor[], Tensor)",
    empties_like("y", "weights_BGE"),
)
register_autograd("dense_combine", _dense_combine_backward, _dense_combine_context)
