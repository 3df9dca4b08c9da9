"""`mixed_towers`: the towers of many tasks on their gates' mixes, which are never written down."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmoe.ops._checks import accumulate_dtype, check_device, check_dims, check_float, check_shape
from mmoe.ops._library import any_needed, define, register_autograd
from mmoe.ops.dispatch import check_mixing, dense_combine
from mmoe.ops.products import FusedActivation, check_activation, dense_mm
from mmoe.ops.reference import keeps_z


def mixed_towers(
    y: Sequence[Tensor] | Tensor,
    weights_BGE: Tensor,
    weight_GOH: Tensor,
    bias_GH: Tensor,
    head_GH: Tensor,
    head_bias_G: Tensor,
    activation: FusedActivation = "relu",
) -> Tensor:
    """Mixes all experts for every gate, and sends each mix through a tower of its own.

    mix[b, g]    = sum over e of weights[b, g, e] * y[e][b]
    hidden[b, g] = activation(mix[b, g] @ W[g] + c[g])
    logit[b, g]  = <hidden[b, g], head[g]> + head_bias[g]

    `dense_combine` and `dense_mm` twice, to the same bits. On the CPU a few rows at a time are
    mixed and go through the towers while they are in the processor's cache, and backward they are
    mixed again: mixes of many gates and their gradients never reach the memory.

    Args:
        y: E tensors [B, O], or one tensor y_EBO; float32, bfloat16 or float64.
        weights_BGE: Floating point; may be wider than y.
        weight_GOH: In y's dtype, or float32 beside bfloat16 rows.
        bias_GH: The weight's dtype.
        head_GH: Weights of the logits; floating point.
        head_bias_G: Likewise.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        logits_BG in float32 (float64 for float64 y).

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation.

    Example:
        >>> import torch
        >>> from mmoe.ops import mixed_towers
        >>> y = [torch.ones(2, 3), -torch.ones(2, 3)]  # 2 experts, 2 samples
        >>> weights_BGE = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # 1 gate
        >>> layer = torch.ones(1, 3, 4), torch.zeros(1, 4)
        >>> mixed_towers(y, weights_BGE, *layer, torch.ones(1, 4), torch.ones(1)).tolist()
        [[13.0], [1.0]]

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equations 5 and 6: the gates' mixes and the towers h^k.
    """
    tensors = check_mixing(y, weights_BGE)
    dtype = accumulate_dtype(tensors[0].dtype)
    _check_towers(tensors[0], weights_BGE, weight_GOH, bias_GH, head_GH, head_bias_G, activation)
    weights_BGE, head_GH, head_bias_G = (x.to(dtype) for x in (weights_BGE, head_GH, head_bias_G))
    matrices = (weight_GOH, bias_GH, head_GH, head_bias_G)
    if tensors[0].device.type == "cpu":
        learns = any(tensor.requires_grad for tensor in (*tensors, weights_BGE, *matrices))
        keep = learns and torch.is_grad_enabled()
        return torch.ops.mmoe.mixed_towers(tensors, weights_BGE, *matrices, activation, keep)[0]
    mixes_GBO = dense_combine(y, weights_BGE).transpose(0, 1)
    hidden = [h_BH.to(dtype) for h_BH in dense_mm(mixes_GBO, weight_GOH, bias_GH, activation)]
    logits = dense_mm(hidden, head_GH.unsqueeze(2), head_bias_G.unsqueeze(1))
    return torch.cat(logits, dim=1)


def _check_towers(
    y: Tensor,
    weights_BGE: Tensor,
    weight_GOH: Tensor,
    bias_GH: Tensor,
    head_GH: Tensor,
    head_bias_G: Tensor,
    activation: str,
) -> None:
    """Refuses towers that do not fit the mixes."""
    G, dtype = weights_BGE.shape[1], y.dtype
    if G < 1:
        raise ValueError("weights_BGE: expected at least one gate, got none")
    check_activation(activation)
    check_dims("weight_GOH", weight_GOH, "GOH")
    H = weight_GOH.shape[2]
    of_gates = f"weights_BGE ({G} gates) and y (rows of {y.shape[-1]})"
    check_shape("weight_GOH", weight_GOH, [G, y.shape[-1], H], of_gates)
    if weight_GOH.dtype not in (dtype, accumulate_dtype(dtype)):
        raise ValueError(
            f"weight_GOH: expected dtype {accumulate_dtype(dtype)}, or that of y ({dtype}), got "
            f"{weight_GOH.dtype}"
        )
    check_shape("bias_GH", bias_GH, [G, H], "weight_GOH")
    if bias_GH.dtype != weight_GOH.dtype:
        raise ValueError(
            f"bias_GH: expected dtype {weight_GOH.dtype} as weight_GOH, got {bias_GH.dtype}"
        )
    check_shape("head_GH", head_GH, [G, H], "weight_GOH")
    check_shape("head_bias_G", head_bias_G, [G], "weight_GOH")
    check_float("head_GH", head_GH)
    check_float("head_bias_G", head_bias_G)
    matrices = {"weight_GOH": weight_GOH, "bias_GH": bias_GH, "head_GH": head_GH}
    for name, tensor in {**matrices, "head_bias_G": head_bias_G}.items():
        check_device(name, tensor, y.device, "y")


def _fake(
    y: Sequence[Tensor],
    weights_BGE: Tensor,
    weight_GOH: Tensor,
    head_GH: Tensor,
    activation: str,
    keep: bool,
    **rest: Any,
) -> tuple[Tensor, list[Tensor]]:
    B, G, _ = weights_BGE.shape
    tables = 0 if not keep else 2 if keeps_z(activation) else 1
    kept = [y[0].new_empty(G, B, weight_GOH.shape[2]) for _ in range(tables)]
    return head_GH.new_empty(B, G), kept


def _fake_backward(
    y: Sequence[Tensor],
    weights_BGE: Tensor,
    weight_GOH: Tensor,
    head_GH: Tensor,
    need_mixes: bool,
    **rest: Any,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor]:
    G, _, H = weight_GOH.shape
    return (
        [part.new_empty(part.shape) for part in y] if need_mixes else [],
        weights_BGE.new_empty(weights_BGE.shape if need_mixes else 0),
        weight_GOH.new_empty(weight_GOH.shape),
        weight_GOH.new_empty(G, H),
        head_GH.new_empty(G, H),
        head_GH.new_empty(G),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor]]) -> None:
    y, weights_BGE, weight_GOH, _, head_GH, _, activation, _ = inputs
    kept = output[1]
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)  # zeros for what is kept, as large as that
    ctx.save_for_backward(weights_BGE, weight_GOH, head_GH, *y, *kept)
    ctx.outputs, ctx.activation = len(y), activation


def _backward(ctx: Any, grad_BG: Tensor | None, _: Any) -> tuple[Any, ...]:
    if grad_BG is None:
        return [None] * ctx.outputs, *[None] * 7
    weights_BGE, weight_GOH, head_GH, *saved = ctx.saved_tensors
    y, kept = saved[: ctx.outputs], saved[ctx.outputs :]
    y_needs, need_weights, *_ = ctx.needs_input_grad
    need_mixes = any_needed(y_needs) or need_weights
    grad_y, grad_weights_BGE, *of_towers = torch.ops.mmoe.mixed_towers_backward(
        grad_BG, y, weights_BGE, weight_GOH, head_GH, kept, ctx.activation, need_mixes
    )
    if not need_mixes:
        grad_y, grad_weights_BGE = [None] * len(y), None
    return grad_y, grad_weights_BGE, *of_towers, None, None


define(
    "mixed_towers(Tensor[] y, Tensor weights_BGE, Tensor weight_GOH, Tensor bias_GH,"
    " Tensor head_GH, Tensor head_bias_G, str activation, bool keep) -> (Tensor, Tensor[])",
    _fake,
)
define(
    "mixed_towers_backward(Tensor grad_BG, Tensor[] y, Tensor weights_BGE, Tensor weight_GOH,"
    " Tensor head_GH, Tensor[] kept, str activation, bool need_mixes)"
    " -> (Tensor[], Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_backward,
)
register_autograd("mixed_towers", _backward, _setup_context)
