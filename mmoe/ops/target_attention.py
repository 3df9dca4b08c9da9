"""`target_attention`: a row's events summed, each weighed by an MLP that sees the target."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.ops._checks import (
    accumulate_dtype,
    check_device,
    check_dims,
    check_float,
    check_lengths,
    check_shape,
)
from mmoe.ops._library import define, register_autograd

MOST_DEEPER = 7  # a GPU's launch carries pointers to so many layers after the first one


class TargetAttention(NamedTuple):
    """Output of `target_attention`.

    Attributes:
        out_BD: Weighted sums of the rows' events, in their type.
        weights_V: How much each event counts, float32 or float64.
    """

    out_BD: Tensor
    weights_V: Tensor


def target_attention(
    e_VD: Tensor,
    lengths_B: Tensor,
    q_BD: Tensor,
    weight_2DH: Tensor,
    bias_BH: Tensor,
    score_N: Tensor,
    score_bias_1: Tensor,
    *,
    deeper: Sequence[tuple[Tensor, Tensor]] = (),
    softmax: bool = False,
) -> TargetAttention:
    """Adds up each row's events, weighed by what an MLP of ReLUs makes of event and target.

    `out_b = Σ_v a_v e_v` over b's own v, `a_v = s · h_v + s₀`, where `h_v` is
    `relu([ē_v, ē_v ⊙ q_b] W + c_b)` or what deeper layers make of it, and
    `ē = e / √(mean e² + 10⁻⁶)`.

    There is no padding, and nothing of the layers' size is kept: the gradient computes them again.
    On the CPU a row's bits depend on that row alone, whatever the number of threads. Both results
    have gradients, and so has every argument but the lengths.

    Args:
        e_VD: Events of all rows, one row's after another's; float32, bfloat16 or float64.
        lengths_B: How many each row has, int; they sum to V.
        q_BD: The rows' targets, in the events' dtype; read as they are.
        weight_2DH: Of the events, and below of their products with the target; any of these types,
            taken in float32 (float64 beside float64 events), as all that follow.
        bias_BH: What a row's target adds to the first layer by itself, the layer's bias included.
        score_N: Weights of the last layer's numbers.
        score_bias_1: s₀, which a softmax takes no notice of.
        deeper: Weights `[H, H']` and biases `[H']` of up to 7 layers after the first one.
        softmax: The weights of a row sum to 1.

    Returns:
        `out_BD`, zeros where a row has no events, and `weights_V`, the a_v.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, lengths that do not sum to V.

    Example:
        >>> import torch
        >>> from mmoe.ops import target_attention
        >>> e_VD, q_BD = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[1.0], [1.0]])
        >>> layer = torch.ones(2, 1), torch.zeros(2, 1), torch.ones(1), torch.zeros(1)
        >>> out = target_attention(e_VD, torch.tensor([2, 1]), q_BD, *layer, softmax=True)
        >>> [part.round(decimals=3).tolist() for part in out]
        [[[2.0], [5.0]], [0.5, 0.5, 1.0]]

    Source: Zhou et al., "Deep interest network for click-through rate prediction" (KDD 2018),
        section 4.3 and equation 3, with ReLU and with scaled events.
    """
    _check_events(e_VD, q_BD)
    layers = _checked_layers(e_VD, q_BD, weight_2DH, bias_BH, score_N, score_bias_1, deeper)
    check_lengths("lengths_B", lengths_B, len(q_BD), "q_BD", e_VD.shape[0], "e_VD")
    check_device("lengths_B", lengths_B, e_VD.device, "e_VD")
    offsets_B1 = F.pad(lengths_B.cumsum(0, dtype=torch.int32), (1, 0))
    return TargetAttention(
        *torch.ops.mmoe.target_attention(e_VD, offsets_B1, q_BD, *layers, softmax)
    )


def _check_events(e_VD: Tensor, q_BD: Tensor) -> None:
    check_float("e_VD", e_VD, "VD")
    check_dims("q_BD", q_BD, "BD")
    check_shape("q_BD", q_BD, [len(q_BD), e_VD.shape[1]], "the width of e_VD")
    if q_BD.dtype != e_VD.dtype:
        raise ValueError(
            f"q_BD: expected dtype {e_VD.dtype} as e_VD, got {q_BD.dtype}; use .to({e_VD.dtype})"
        )
    check_device("q_BD", q_BD, e_VD.device, "e_VD")


def _checked_layers(
    e_VD: Tensor,
    q_BD: Tensor,
    weight_2DH: Tensor,
    bias_BH: Tensor,
    score_N: Tensor,
    score_bias_1: Tensor,
    deeper: Sequence[tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor], Tensor, Tensor]:
    """Checks the learnt tensors and casts them to the type of sums: first layer, deeper, scores."""
    (B, D), dtype = q_BD.shape, accumulate_dtype(e_VD.dtype)

    def parameter(name: str, tensor: Tensor, shape: Sequence[int], like: str) -> Tensor:
        check_shape(name, tensor, shape, like)
        check_float(name, tensor)
        check_device(name, tensor, e_VD.device, "e_VD")
        return tensor.to(dtype)

    check_dims("weight_2DH", weight_2DH, ("2D", "H"))
    width = weight_2DH.shape[1]
    weight_2DH = parameter("weight_2DH", weight_2DH, [2 * D, width], "the width of e_VD")
    bias_BH = parameter("bias_BH", bias_BH, [B, width], "q_BD and weight_2DH")
    if len(deeper) > MOST_DEEPER:
        raise ValueError(f"deeper: expected at most {MOST_DEEPER} layers, got {len(deeper)}")
    weights, biases, like = [], [], "weight_2DH"
    for i, (weight_HN, bias_N) in enumerate(deeper):
        name = f"deeper[{i}]"
        check_dims(name, weight_HN, ("H", "H'"))
        weights.append(parameter(name, weight_HN, [width, weight_HN.shape[1]], like))
        like, width = name, weight_HN.shape[1]
        biases.append(parameter(name, bias_N, [width], f"the weight of {name}"))
    score_N = parameter("score_N", score_N, [width], like)
    score_bias_1 = parameter("score_bias_1", score_bias_1, [1], "one score")
    return weight_2DH, bias_BH, weights, biases, score_N, score_bias_1


def _fake(e_VD: Tensor, q_BD: Tensor, score_N: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return q_BD.new_empty(q_BD.shape), score_N.new_empty(e_VD.shape[0])


def _fake_backward(
    e_VD: Tensor,
    q_BD: Tensor,
    weight_2DH: Tensor,
    bias_BH: Tensor,
    deep_weights: list[Tensor],
    deep_biases: list[Tensor],
    score_N: Tensor,
    **rest: Any,
) -> tuple[Tensor | list[Tensor], ...]:
    def like(tensor: Tensor) -> Tensor:
        return tensor.new_empty(tensor.shape)

    before = [like(tensor) for tensor in (e_VD, q_BD, weight_2DH, bias_BH)]
    deep = [[like(tensor) for tensor in part] for part in (deep_weights, deep_biases)]
    return *before, *deep, like(score_N), score_N.new_empty(1)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *first, weights, biases, score_N, _, ctx.softmax = inputs
    ctx.deeper = len(weights)
    ctx.save_for_backward(*first, *weights, *biases, score_N, output[1])


def _backward(ctx: Any, grad_BD: Tensor, grad_weights_V: Tensor) -> tuple[Any, ...]:
    *first, score_N, weights_V = ctx.saved_tensors
    first, deep = first[:5], first[5:]
    of_events, *others = torch.ops.mmoe.target_attention_backward(
        grad_BD,
        grad_weights_V,
        *first,
        deep[: ctx.deeper],
        deep[ctx.deeper :],
        score_N,
        weights_V,
        ctx.softmax,
    )
    return of_events, None, *others, None


define(
    "target_attention(Tensor e_VD, Tensor offsets_B1, Tensor q_BD, Tensor weight_2DH,"
    " Tensor bias_BH, Tensor[] deep_weights, Tensor[] deep_biases, Tensor score_N,"
    " Tensor score_bias_1, bool softmax) -> (Tensor, Tensor)",
    _fake,
)
define(
    "target_attention_backward(Tensor grad_BD, Tensor grad_weights_V, Tensor e_VD,"
    " Tensor offsets_B1, Tensor q_BD, Tensor weight_2DH, Tensor bias_BH, Tensor[] deep_weights,"
    " Tensor[] deep_biases, Tensor score_N, Tensor weights_V, bool softmax)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor[], Tensor[], Tensor, Tensor)",
    _fake_backward,
)
register_autograd("target_attention", _backward, _setup_context)
