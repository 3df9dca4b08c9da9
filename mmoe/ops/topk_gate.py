"""`topk_gate`: each gate's best experts for each sample, and how much each counts."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mmoe.ops._autograd import register_autograd
from mmoe.ops._checks import accumulate_dtype, check_device, check_dims, check_float, check_shape
from mmoe.ops._library import define

Softmax = Literal["after", "before"]


def topk_gate(
    logits_BGE: Tensor, visibility_GE: Tensor, k: int, *, softmax: Softmax = "after"
) -> tuple[Tensor, Tensor]:
    """Picks each gate's k largest logits among the experts it sees, and weighs them by softmax.

    With S the picks ("after") or all visible experts ("before"):
    weight[j] = exp(logit[e_j]) / sum over e in S of exp(logit[e])

    Of equal logits the expert with the lower number wins. A logit of -inf counts as not seen; +inf
    takes all the weight, and several share it. Arithmetic is float32 (float64 for float64 input).

    Args:
        logits_BGE: float32, bfloat16 or float64.
        visibility_GE: Bool; a gate never picks an expert it does not see, and gives its logit no
            gradient.
        k: Picks per gate, from 1 to the experts that the gate sees; K = min(k, E).
        softmax: "after" the selection (the weights of a gate add to 1) or "before" it (they add to
            the picks' share, and the gradient reaches every visible logit).

    Returns:
        weights_BGK (float32 or float64) and experts_BGK (int32), best first. A row with fewer
        than K visible logits above -inf (gate dropout makes such) has picks of -1 with weight 0.

    Raises:
        ValueError: On shapes, dtypes or devices that do not fit, or (CPU) k above what a gate sees,
            or NaN among the logits of visible experts. On a GPU, which the host would have to wait
            for, and while a program is traced, values are not looked at: a gate that sees fewer
            than K experts then has picks of -1 with weight 0, and NaN logits give NaN weights.

    Example:
        >>> import torch
        >>> from mmoe.ops import topk_gate
        >>> logits = torch.tensor([[[0.0, 2.0, 2.0, 9.0]]])  # 1 sample, 1 gate
        >>> visible = torch.tensor([[True, True, True, False]])
        >>> weights, experts = topk_gate(logits, visible, k=2)
        >>> weights.tolist(), experts.tolist()
        ([[[0.5, 0.5]]], [[[1, 2]]])

    Source:
        Shazeer et al. 2017, "Outrageously Large Neural Networks", equations 3 to 5, without noise.
    """
    check_dims("logits_BGE", logits_BGE, "BGE")
    check_float("logits_BGE", logits_BGE)
    if logits_BGE.shape[2] == 0:
        raise ValueError("logits_BGE: expected at least one expert, got none")
    check_shape("visibility_GE", visibility_GE, logits_BGE.shape[1:], "logits_BGE")
    if visibility_GE.dtype != torch.bool:
        raise ValueError(
            f"visibility_GE: expected dtype torch.bool, got {visibility_GE.dtype}; use .bool()"
        )
    check_device("visibility_GE", visibility_GE, logits_BGE.device, "logits_BGE")
    if k < 1:
        raise ValueError(f"k: expected at least 1 pick per gate, got {k}")
    if softmax not in get_args(Softmax):
        raise ValueError(f"softmax: expected 'after' or 'before', got {softmax!r}")
    return torch.ops.mmoe.topk_gate(logits_BGE, visibility_GE, k, softmax == "after")


def _fake(
    logits_BGE: Tensor, visibility_GE: Tensor, k: int, softmax_after: bool
) -> tuple[Tensor, Tensor]:
    B, G, E = logits_BGE.shape
    shape = (B, G, min(k, E))
    weights_BGK = logits_BGE.new_empty(shape, dtype=accumulate_dtype(logits_BGE.dtype))
    return weights_BGK, logits_BGE.new_empty(shape, dtype=torch.int32)


def _fake_backward(
    grad_BGK: Tensor,
    logits_BGE: Tensor,
    visibility_GE: Tensor,
    experts_BGK: Tensor,
    softmax_after: bool,
) -> Tensor:
    return logits_BGE.new_empty(logits_BGE.shape)


def _setup_context(
    ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: tuple[Tensor, Tensor]
) -> None:
    logits_BGE, visibility_GE, _, ctx.softmax_after = inputs
    ctx.save_for_backward(logits_BGE, visibility_GE, output[1])


def _backward(ctx: Any, grad_BGK: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    grad_BGE = torch.ops.mmoe.topk_gate_backward(grad_BGK, *ctx.saved_tensors, ctx.softmax_after)
    return grad_BGE, None, None, None


define(
    "topk_gate(Tensor logits_BGE, Tensor visibility_GE, int k, bool softmax_after)"
    " -> (Tensor, Tensor)",
    _fake,
)
define(
    "topk_gate_backward(Tensor grad_BGK, Tensor logits_BGE, Tensor visibility_GE,"
    " Tensor experts_BGK, bool softmax_after) -> Tensor",
    _fake_backward,
)
register_autograd("topk_gate", _backward, _setup_context)
