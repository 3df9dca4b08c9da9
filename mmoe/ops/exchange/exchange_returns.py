"""`pack_returns` and `mix_returns`: outputs on their way back, as pairs or as partial sums."""

from typing import Any

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._library import define
from mmoe.ops.exchange.inbound_plan import ReturnPlan
from mmoe.ops.exchange.outbound_plan import OutboundPlan


def pack_returns(
    y_RO: Tensor,
    weights_NGK: Tensor,
    back: ReturnPlan,
    slots_NGK: Tensor,
    num_rows: int,
    wire: torch.dtype,
) -> Tensor:
    """Puts the experts' outputs, or each gate's sum of them, in the order in which they go back.

    back[back_R[p]] = y[p];   back[back_NG[n, g]] = Σ_k weights[n, g, k] · y[slots[n, g, k]]

    Args:
        y_RO: Outputs, expert-major.
        weights_NGK: float32 (float64 beside float64 outputs).
        back: Where each goes.
        slots_NGK: int32, the pair that serves a pick; −1 = unused.
        num_rows: Z.
        wire: What outputs travel in.

    Returns:
        back_ZO in the wire's dtype. Sums are taken in float32 (float64), picks in their order.

    Raises:
        ValueError: On arguments that do not fit together, or (CPU) an index out of range.

    Example:
        >>> import torch
        >>> from mmoe.ops.exchange.inbound_plan import ReturnPlan
        >>> back = ReturnPlan(torch.tensor([1, -1, -1]).int(), torch.tensor([[-1], [0]]).int())
        >>> slots = torch.tensor([[[0, -1]], [[1, 2]]]).int()
        >>> y_RO = torch.tensor([[1.0], [10.0], [100.0]])
        >>> pack_returns(y_RO, torch.full((2, 1, 2), 0.5), back, slots, 2, y_RO.dtype).tolist()
        [[55.0], [1.0]]
    """
    return torch.ops.mmoe.pack_returns(y_RO, weights_NGK, *back, slots_NGK, num_rows, wire)


def mix_returns(
    back_ZO: Tensor, weights_BGK: Tensor, plan: OutboundPlan, links_WL: Tensor, dtype: torch.dtype
) -> Tensor:
    """Mixes what came back for every gate: out[b, g] = Σ_row Σ_{k of the row} w[b, g, k] · y[pick].

    The picks of a row first, then the rows, and a row's part is rounded to `dtype`: so the result
    has the same bits whether pairs came back or their sum.

    Args:
        back_ZO: What came back, rank by rank.
        weights_BGK: The gates' weights, float32 (float64 for float64).
        plan: What went out.
        links_WL: The links that it went over.
        dtype: Of the rows.

    Returns:
        out_BGO. A weight whose pick came back in a sum gets no gradient here: it gets it where the
        sum was taken.

    Raises:
        ValueError: On arguments that do not fit together.
    """
    return torch.ops.mmoe.mix_returns(
        back_ZO, weights_BGK, plan.rows_BGK, plan.pairs_BGK, plan.sums_BGK, links_WL, dtype
    )


def _fake_pack(y_RO: Tensor, num_rows: int, wire: torch.dtype, **rest: Any) -> Tensor:
    return y_RO.new_empty(num_rows, y_RO.shape[1], dtype=wire)


def _fake_pack_backward(y_RO: Tensor, weights_NGK: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return y_RO.new_empty(y_RO.shape), weights_NGK.new_empty(weights_NGK.shape)


def _fake_mix(back_ZO: Tensor, rows_BGK: Tensor, dtype: torch.dtype, **rest: Any) -> Tensor:
    return back_ZO.new_empty(*rows_BGK.shape[:2], back_ZO.shape[1], dtype=dtype)


def _fake_mix_backward(back_ZO: Tensor, weights_BGK: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return back_ZO.new_empty(back_ZO.shape), weights_BGK.new_empty(weights_BGK.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))


def _backward_of_pack(ctx: Any, grad_ZO: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.mmoe.pack_returns_backward(grad_ZO, *ctx.saved_tensors)
    return *grads, None, None, None, None, None


def _backward_of_mix(ctx: Any, grad_BGO: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.mmoe.mix_returns_backward(grad_BGO, *ctx.saved_tensors)
    return *grads, None, None, None, None, None


define(
    "pack_returns(Tensor y_RO, Tensor weights_NGK, Tensor back_R, Tensor back_NG,"
    " Tensor slots_NGK, int num_rows, ScalarType wire) -> Tensor",
    _fake_pack,
)
define(
    "pack_returns_backward(Tensor grad_ZO, Tensor y_RO, Tensor weights_NGK, Tensor back_R,"
    " Tensor back_NG, Tensor slots_NGK) -> (Tensor, Tensor)",
    _fake_pack_backward,
)
define(
    "mix_returns(Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK, Tensor pairs_BGK,"
    " Tensor sums_BGK, Tensor links_WL, ScalarType dtype) -> Tensor",
    _fake_mix,
)
define(
    "mix_returns_backward(Tensor grad_BGO, Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK,"
    " Tensor pairs_BGK, Tensor sums_BGK, Tensor links_WL) -> (Tensor, Tensor)",
    _fake_mix_backward,
)
register_autograd("pack_returns", _backward_of_pack, _setup)
register_autograd("mix_returns", _backward_of_mix, _setup)
