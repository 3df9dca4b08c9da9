"""Operators of gates: `gate_mm`, `topk_gate`, `joint_select`, softmaxes of few numbers."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mmoe.ops._checks import accumulate_dtype, check_device, check_dims, check_float, check_shape
from mmoe.ops._library import define, empties_like, register_autograd


def gate_mm(x_BD: Tensor, weight_DN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Multiplies rows by the weights of all gates without rounding anything.

    y = x @ W + b

    No float32 copy of bfloat16 rows is made: the CPU widens them while they are read, a GPU takes
    the weights in three parts of bfloat16, and PyTorch's switch for TF32 changes nothing. A row's
    result depends on that row alone: not on its place, the other rows or the threads.

    Args:
        x_BD: float32, bfloat16 or float64.
        weight_DN: Any of these; widened to float32 (float64 beside float64 rows).
        bias_N: Likewise.

    Returns:
        y_BN in float32, or float64. Its gradient for x has x's dtype.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit.

    Example:
        >>> import torch
        >>> from mmoe.ops import gate_mm
        >>> x_BD = torch.ones(2, 3, dtype=torch.bfloat16)
        >>> gate_mm(x_BD, torch.full((3, 1), 1 + 2**-20)).tolist() == [[3 + 3 * 2**-20]] * 2
        True

    Source: Fedus et al., "Switch transformers" (JMLR 2022), section 2.4, for router arithmetic in
        float32 beside bfloat16 experts.
    """
    check_float("x_BD", x_BD, "BD")
    check_dims("weight_DN", weight_DN, "DN")
    check_shape("weight_DN", weight_DN, [x_BD.shape[1], weight_DN.shape[1]], "the width of x_BD")
    check_float("weight_DN", weight_DN)
    check_device("weight_DN", weight_DN, x_BD.device, "x_BD")
    dtype = accumulate_dtype(x_BD.dtype)
    if bias_N is not None:
        check_shape("bias_N", bias_N, [weight_DN.shape[1]], "weight_DN")
        check_float("bias_N", bias_N)
        check_device("bias_N", bias_N, x_BD.device, "x_BD")
        bias_N = bias_N.to(dtype)
    return torch.ops.mmoe.gate_mm(x_BD, weight_DN.to(dtype), bias_N)


def _fake_gate_mm(x_BD: Tensor, weight_DN: Tensor, **rest: Any) -> Tensor:
    return weight_DN.new_empty(x_BD.shape[0], weight_DN.shape[1])


def _fake_gate_mm_backward(
    x_BD: Tensor, weight_DN: Tensor, need_x: bool, need_weight: bool, need_bias: bool, **rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x_BD.new_empty(x_BD.shape if need_x else 0),
        weight_DN.new_empty(weight_DN.shape if need_weight else 0),
        weight_DN.new_empty(weight_DN.shape[1] if need_bias else 0),
    )


def _gate_mm_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_BD, weight_DN, _ = inputs
    ctx.save_for_backward(x_BD, weight_DN)


def _gate_mm_backward(ctx: Any, grad_BN: Tensor) -> tuple[Any, ...]:
    return torch.ops.mmoe.gate_mm_backward(grad_BN, *ctx.saved_tensors, *ctx.needs_input_grad)


define("gate_mm(Tensor x_BD, Tensor weight_DN, Tensor? bias_N) -> Tensor", _fake_gate_mm)
define(
    "gate_mm_backward(Tensor grad_BN, Tensor x_BD, Tensor weight_DN, bool need_x,"
    " bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)",
    _fake_gate_mm_backward,
)
register_autograd("gate_mm", _gate_mm_backward, _gate_mm_context)


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
    check_float("logits_BGE", logits_BGE, "BGE")
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


def _fake_topk_gate(logits_BGE: Tensor, k: int, **rest: Any) -> tuple[Tensor, Tensor]:
    B, G, E = logits_BGE.shape
    shape = (B, G, min(k, E))
    weights_BGK = logits_BGE.new_empty(shape, dtype=accumulate_dtype(logits_BGE.dtype))
    return weights_BGK, logits_BGE.new_empty(shape, dtype=torch.int32)


def _topk_gate_context(
    ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: tuple[Tensor, Tensor]
) -> None:
    logits_BGE, visibility_GE, _, ctx.softmax_after = inputs
    ctx.save_for_backward(logits_BGE, visibility_GE, output[1])


def _topk_gate_backward(ctx: Any, grad_BGK: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    grad_BGE = torch.ops.mmoe.topk_gate_backward(grad_BGK, *ctx.saved_tensors, ctx.softmax_after)
    return grad_BGE, None, None, None


define(
    "topk_gate(Tensor logits_BGE, Tensor visibility_GE, int k, bool softmax_after)"
    " -> (Tensor, Tensor)",
    _fake_topk_gate,
)
define(
    "topk_gate_backward(Tensor grad_BGK, Tensor logits_BGE, Tensor visibility_GE,"
    " Tensor experts_BGK, bool softmax_after) -> Tensor",
    empties_like("logits_BGE"),
)
register_autograd("topk_gate", _topk_gate_backward, _topk_gate_context)


MOST_NUMBERS = 16  # of a row
# Less than fill a vector of the widest registers: from there on torch is faster
_FEW = 15


def visible_softmax(logits_BGE: Tensor, visibility_GE: Tensor) -> Tensor:
    """Computes the softmax over experts that each gate sees; 0 exactly for the others.

    On a CPU torch takes one row after the other, which leaves vectors half empty where a row has
    few numbers: with 64 gates of 8 experts on 4,096 rows 28 ms, and 11 ms backward, on a core where
    this takes 1.4 and 1.6. Here a vector holds numbers of many rows (`row_softmax`). A row's bits
    depend on that row alone.

    Args:
        logits_BGE: Any float type.
        visibility_GE: Bool.

    Returns:
        As `softmax(-1)`.

    Example:
        >>> import torch
        >>> visible_softmax(torch.zeros(1, 1, 3), torch.tensor([[True, True, False]]))
        tensor([[[0.5000, 0.5000, 0.0000]]])
    """
    # Looking is free on a CPU in eager mode, and two passes over the logits are not
    compiled = torch.compiler.is_compiling()
    looked = not compiled and type(visibility_GE) is Tensor and visibility_GE.device.type == "cpu"
    if not (looked and bool(visibility_GE.all())):
        logits_BGE = logits_BGE.masked_fill(~visibility_GE, -torch.inf)
    x, width = logits_BGE, logits_BGE.shape[-1]
    plain = compiled or type(x) is not Tensor
    if plain or x.device.type != "cpu" or not 0 < width <= _FEW or x.dtype.itemsize < 4:
        return x.softmax(-1)
    return torch.ops.mmoe.row_softmax(x.reshape(-1, width)).view(x.shape)


def row_softmax(x_RN: Tensor) -> Tensor:
    """Computes the softmax of every row: `p[r, n] = exp(x[r, n]) / sum over m of exp(x[r, m])`.

    On the CPU a vector register holds a number of many rows, and a row's bits depend on that row
    alone.

    Args:
        x_RN: float32 or float64, of 1 to 16 numbers a row. One of −∞ gets 0; a row of −∞ alone, or
            with a NaN, gets NaN.

    Returns:
        `p_RN` in x's dtype.

    Raises:
        ValueError: Another dtype or number of numbers.

    Example:
        >>> import torch
        >>> row_softmax(torch.zeros(1, 4)).tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """
    check_dims("x_RN", x_RN, "RN")
    if x_RN.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x_RN: expected torch.float32 or torch.float64, got {x_RN.dtype}")
    if not 1 <= x_RN.shape[1] <= MOST_NUMBERS:
        raise ValueError(
            f"x_RN: expected rows of 1 to {MOST_NUMBERS} numbers, got {x_RN.shape[1]}; use .softmax"
        )
    return torch.ops.mmoe.row_softmax(x_RN)


def _row_softmax_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _row_softmax_backward(ctx: Any, grad_RN: Tensor) -> Tensor:
    (p_RN,) = ctx.saved_tensors
    return torch.ops.mmoe.row_softmax_backward(grad_RN, p_RN)


define("row_softmax(Tensor x_RN) -> Tensor", empties_like("x_RN"))
define("row_softmax_backward(Tensor grad_RN, Tensor p_RN) -> Tensor", empties_like("p_RN"))
register_autograd("row_softmax", _row_softmax_backward, _row_softmax_context)


Aggregate = Literal["mean", "max"]


def joint_select(
    scores_BGE: Tensor,
    visibility_GE: Tensor,
    *,
    shared_k: int = 0,
    private_k: int,
    budget: int | None = None,
    floor: int = 1,
    aggregate: Aggregate = "mean",
    votes_G: Tensor | None = None,
    asked_BG: Tensor | None = None,
) -> Tensor:
    """Picks experts for all gates of a row together, so that few are computed for all of them.

    With p the scores, V the gates with a vote that a row asks for (all of these, if none has one):
    shared = the shared_k experts of largest `Σ_{g ∈ V} p_g[e]` (or max) that all of V see;
    picks_g = shared and the private_k others of largest `p_g[e]` that g sees. With a budget b these
    come of a set S of at most b: each voter's first choice (floor 1), shared, then by turns what
    adds most to `Σ_{g ∈ V} (sum of the private_k largest p_g in S without shared)`. Of equal ones
    the expert with the lower number wins. Rows do not depend on one another.

    Args:
        scores_BGE: float32 or float64, how much each gate wants each expert: probabilities, times
            how much the gate has to say. An expert with a score of 0, below, or NaN is not picked.
        visibility_GE: Bool; a gate never picks an expert it does not see.
        shared_k: From 0 on.
        private_k: From 0 on; shared_k + private_k is at least 1, and at most E.
        budget: b, at least shared_k; None: any number.
        floor: 1 or 0.
        aggregate: What makes the shared experts: the `mean` of the votes or their `max`.
        votes_G: Bool; None: every gate has a vote.
        asked_BG: Bool, the gates that each row asks for; others pick nothing. None: all.

    Returns:
        picked_BGE, bool: at most shared_k + private_k experts for a gate; without a gradient.

    Raises:
        ValueError: On shapes, dtypes or devices that do not fit, or numbers out of range.

    Example:
        >>> import torch
        >>> from mmoe.ops import joint_select
        >>> scores = torch.tensor([[[0.5, 0.3, 0.2, 0.0], [0.0, 0.3, 0.1, 0.6]]])
        >>> visible = torch.ones(2, 4, dtype=torch.bool)
        >>> joint_select(scores, visible, shared_k=1, private_k=1).int().tolist()
        [[[1, 1, 0, 0], [0, 1, 0, 1]]]
        >>> joint_select(scores, visible, private_k=2, budget=3).int().tolist()
        [[[1, 1, 0, 0], [0, 1, 0, 1]]]

    Source: Nemhauser, Wolsey and Fisher, "An analysis of approximations for maximizing submodular
        set functions" (Mathematical Programming 14, 1978) for the greedy set; SMES (arXiv
        2602.09386, 2026) for shared and private picks of several gates; these rules are ours.
    """
    votes_G = visibility_GE.new_ones(visibility_GE.shape[:1]) if votes_G is None else votes_G
    _check_joint(scores_BGE, visibility_GE, votes_G, asked_BG, aggregate)
    check_selection(shared_k, private_k, budget, floor, scores_BGE.shape[2])
    settings = shared_k, private_k, budget or 0, floor, aggregate == "max"
    return torch.ops.mmoe.joint_select(
        scores_BGE.detach(), visibility_GE, votes_G, asked_BG, *settings
    )


def _check_joint(
    scores_BGE: Tensor,
    visibility_GE: Tensor,
    votes_G: Tensor,
    asked_BG: Tensor | None,
    aggregate: str,
) -> None:
    if aggregate not in get_args(Aggregate):
        raise ValueError(f"aggregate: expected 'mean' or 'max', got {aggregate!r}")
    check_dims("scores_BGE", scores_BGE, "BGE")
    if scores_BGE.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"scores_BGE: expected one of torch.float32, torch.float64, got {scores_BGE.dtype}"
        )
    B, G, E = scores_BGE.shape
    if E == 0:
        raise ValueError("scores_BGE: expected at least one expert, got none")
    _check_bool("visibility_GE", visibility_GE, (G, E), scores_BGE)
    _check_bool("votes_G", votes_G, (G,), scores_BGE)
    if asked_BG is not None:
        _check_bool("asked_BG", asked_BG, (B, G), scores_BGE)


def check_selection(
    shared_k: int, private_k: int, budget: int | None, floor: int, num_experts: int
) -> None:
    """Refuses numbers that select nothing, or more than there is."""
    for name, value in (("shared_k", shared_k), ("private_k", private_k)):
        if value < 0:
            raise ValueError(f"{name}: expected 0 or more, got {value}")
    if not 1 <= shared_k + private_k <= num_experts:
        raise ValueError(
            f"shared_k: expected shared_k + private_k from 1 to {num_experts} (the number of "
            f"experts), got {shared_k} + {private_k}"
        )
    if budget is not None and budget < max(shared_k, 1):
        raise ValueError(
            f"budget: expected {max(shared_k, 1)} or more (shared_k is {shared_k}), got {budget}"
        )
    if floor not in (0, 1):
        raise ValueError(f"floor: expected 0 or 1, got {floor}")


def _check_bool(name: str, tensor: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    check_shape(name, tensor, shape, "scores_BGE")
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name}: expected dtype torch.bool, got {tensor.dtype}; use .bool()")
    check_device(name, tensor, like.device, "scores_BGE")


def _fake_joint_select(scores_BGE: Tensor, **rest: Any) -> Tensor:
    return scores_BGE.new_empty(scores_BGE.shape, dtype=torch.bool)


define(
    "joint_select(Tensor scores_BGE, Tensor visibility_GE, Tensor votes_G, Tensor? asked_BG,"
    " int shared_k, int private_k, int budget, int floor, bool largest) -> Tensor",
    _fake_joint_select,
)
