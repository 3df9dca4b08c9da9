"""Arguments for every operator, on the CPU: small shapes that meet each kernel's edges.

A call is an operator's name and its arguments; gradients are operators of their own. Arguments of
the gradients come from the specification, so that both sides start from the same numbers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise, product
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench_ops import given_arguments as exchange_arguments
from mmoe.ops import exchange_reference
from mmoe.ops._library import reference_of
from mmoe.ops.row_sums import Owners

Call = tuple[str, tuple[Any, ...]]
FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64
ACTIVATIONS = ("none", "relu", "gelu", "silu")
NEEDS = (True, True, True)


@dataclass(frozen=True)
class Case:
    """Sizes; `unused`: some picks are -1, and some experts get nothing."""

    B: int
    G: int
    K: int
    E: int
    D: int
    H: int
    unused: bool = False

    def random(self, *shape: int, seed: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def experts_BGK(self) -> Tensor:
        scores_BGE = self.random(self.B, self.G, self.E, seed=1)
        experts_BGK = scores_BGE.topk(self.K, dim=-1).indices
        if self.unused:
            experts_BGK = (experts_BGK // 2 * 2).masked_fill(scores_BGE[..., : self.K] > 1, -1)
        return experts_BGK.int()


CASES = (
    Case(37, 3, 2, 5, 24, 40),
    Case(130, 2, 2, 7, 33, 17, unused=True),
    Case(9, 11, 1, 3, 1, 1),
    Case(600, 4, 2, 64, 128, 256, unused=True),
    Case(2000, 1, 1, 2, 136, 264),
    Case(0, 2, 2, 4, 16, 16),
)
FEW_CASES = CASES[:2]


def topk_gate(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Logits with equals and infinities, and gates that do not see all experts."""
    shape = (case.B, case.G, case.E)
    logits_BGE = case.random(*shape, seed=2).mul(4).round()
    logits_BGE[case.random(*shape, seed=3) > 2] = -math.inf
    visibility_GE = case.random(case.G, case.E, seed=4) > -0.5
    visibility_GE[:, : case.K] = True
    logits_BGE = logits_BGE.to(dtype)
    for after in (True, False):
        forward = "topk_gate", (logits_BGE, visibility_GE, case.K, after)
        weights_BGK, experts_BGK = expected(forward)
        grad_BGK = case.random(*weights_BGK.shape, seed=5).to(weights_BGK.dtype)
        yield forward
        yield "topk_gate_backward", (grad_BGK, logits_BGE, visibility_GE, experts_BGK, after)


def joint_select(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Shared and private picks, budgets, gates without a vote or not asked; equal scores."""
    scores_BGE = case.random(case.B, case.G, case.E, seed=2).mul(4).round()
    scores_BGE = scores_BGE.to(FP64 if dtype == FP64 else FP32)
    visibility_GE = case.random(case.G, case.E, seed=4) > -0.5
    asked_BG = case.random(case.B, case.G, seed=5) > -0.7
    votes_G = case.random(case.G, seed=6) > -0.7
    shared_k = min(case.E - case.K, 2)
    settings = (
        (shared_k, case.K, 0, 1, False),
        (shared_k, case.K, shared_k + 1, 1, False),  # hardly room for all first choices
        (0, case.K, case.K + 2, 1, False),
        (shared_k, case.K, 0, 1, True),
        (0, case.K, 3, 0, False),
    )
    whom = cycle(((votes_G, None), (votes_G, asked_BG), (~votes_G, asked_BG)))
    for numbers, (votes, asked) in zip(settings, whom, strict=False):
        yield "joint_select", (scores_BGE, visibility_GE, votes, asked, *numbers)


def route_plan(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Integers alone: the same for every type."""
    yield "route_plan", (case.experts_BGK(), case.E)


def _plan(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    return expected(("route_plan", (case.experts_BGK(), case.E)))


def permute(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    rows_P, _, slots_BGK = _plan(case)
    yield "permute", (case.random(case.B, case.D, seed=6).to(dtype), rows_P, slots_BGK)


def unpermute(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Rows back, with garbage in the tail."""
    rows_P, offsets_E1, slots_BGK = _plan(case)
    y_PD = case.random(len(rows_P), case.D, seed=7).to(dtype)
    y_PD[int(offsets_E1[-1]) :] = math.nan
    yield "unpermute", (y_PD, rows_P, slots_BGK)


def grouped_mm(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Weights of the rows' type, and fp32 ones beside bf16 rows; garbage in the tail."""
    rows_P, offsets_E1, _ = _plan(case)
    P, pairs = len(rows_P), int(offsets_E1[-1])
    x_PD, grad_PH = case.random(P, case.D, seed=8), case.random(P, case.H, seed=9)
    x_PD[pairs:] = grad_PH[pairs:] = math.nan
    weight_EDH, bias_EH = _weights(case)
    for weights, activation in product(_weight_types(dtype), ACTIVATIONS):
        layer = x_PD.to(dtype), offsets_E1, weight_EDH.to(weights)
        forward = "grouped_mm", (*layer, bias_EH.to(weights), activation)
        yield forward
        kept = expected(forward)
        yield "grouped_mm_backward", (grad_PH.to(dtype), *layer, *kept, activation, *NEEDS)


def gathered_mm(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """The same of rows by number, the tail's -1 among them."""
    rows_P, offsets_E1, slots_BGK = _plan(case)
    x_BD = case.random(case.B, case.D, seed=6).to(dtype)
    grad_PH = case.random(len(rows_P), case.H, seed=9)
    grad_PH[int(offsets_E1[-1]) :] = math.nan
    weight_EDH, bias_EH = _weights(case)
    for weights, activation in product(_weight_types(dtype), ACTIVATIONS):
        layer = x_BD, rows_P, offsets_E1, slots_BGK, weight_EDH.to(weights)
        forward = "gathered_mm", (*layer, bias_EH.to(weights), activation)
        yield forward
        read = x_BD, rows_P, offsets_E1, weight_EDH.to(weights)
        kept = expected(forward)
        yield "gathered_mm_backward", (grad_PH.to(dtype), *read, *kept, activation, *NEEDS)


def dense_mm(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Rows that all experts share, and rows of their own."""
    weight_EDH, bias_EH = _weights(case)
    grad = [case.random(case.B, case.H, seed=20 + e).to(dtype) for e in range(case.E)]
    for parts, weights, activation in product((1, case.E), _weight_types(dtype), ACTIVATIONS):
        x = [case.random(case.B, case.D, seed=40 + e).to(dtype) for e in range(parts)]
        forward = "dense_mm", (x, weight_EDH.to(weights), bias_EH.to(weights), activation)
        yield forward
        kept = expected(forward)
        layer = grad, x, weight_EDH.to(weights)
        yield "dense_mm_backward", (*layer, *kept, activation, *NEEDS)


def shared_mm(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Rows of owners of which some have none."""
    weight_EDH, bias_EH = _weights(case)
    owners = Owners(torch.arange(case.B) * 7 % 11, 13)
    numbers = owners.order_B.int(), owners.bounds.int()
    x_BD = case.random(case.B, case.D, seed=40).to(dtype)
    shared = [case.random(13, case.H, seed=60 + e).to(dtype) for e in range(case.E)]
    grad = [case.random(case.B, case.H, seed=20 + e).to(dtype) for e in range(case.E)]
    for weights, activation in product(_weight_types(dtype), ACTIVATIONS):
        layer = x_BD, weight_EDH.to(weights), bias_EH.to(weights), shared, owners.of_B.int()
        forward = "shared_mm", (*layer, *numbers, activation)
        yield forward
        yield "shared_sums", (grad, *expected(forward), *numbers, activation)


def dense_mlp(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Two layers behind the first, with what owners have of it and without."""
    weight_EDH, bias_EH = _weights(case)
    back_EHD = (case.random(case.E, case.H, case.D, seed=70) / case.H**0.5).contiguous()
    biases = [bias_EH, case.random(case.E, case.D, seed=71), bias_EH]
    x_BD = case.random(case.B, case.D, seed=40).to(dtype)
    shared = [case.random(13, case.H, seed=60 + e).to(dtype) for e in range(case.E)]
    owners_B = (torch.arange(case.B) * 7 % 11).int()
    for weights, activation in product(_weight_types(dtype), ACTIVATIONS):
        layers = [w.to(weights) for w in (weight_EDH, back_EHD, weight_EDH)]
        given = [x_BD], layers, [b.to(weights) for b in biases], activation, "none"
        yield "dense_mlp", (*given, [], None)
        yield "dense_mlp", (*given, shared, owners_B)


def mixed_towers(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Towers of one hidden layer, whose gates mix all experts; of no gates there are none."""
    if case.G == 0:
        return
    wide = FP64 if dtype == FP64 else FP32
    y = [case.random(case.B, case.D, seed=40 + e).to(dtype) for e in range(case.E)]
    weights_BGE = (case.random(case.B, case.G, case.E, seed=18) / case.E**0.5).to(wide)
    weight_GOH = case.random(case.G, case.D, case.H, seed=72) / case.D**0.5
    head_GH = (case.random(case.G, case.H, seed=73) / case.H**0.5).to(wide)
    head_bias_G, bias_GH = (
        case.random(case.G, seed=74).to(wide),
        case.random(case.G, case.H, seed=75),
    )
    grad_BG = case.random(case.B, case.G, seed=76).to(wide)
    for weights, activation in product(_weight_types(dtype), ACTIVATIONS):
        layer = weight_GOH.to(weights), bias_GH.to(weights), head_GH, head_bias_G
        forward = "mixed_towers", (y, weights_BGE, *layer, activation, True)
        yield forward
        read = y, weights_BGE, weight_GOH.to(weights), head_GH
        yield "mixed_towers_backward", (grad_BG, *read, expected(forward)[1], activation, True)


def row_softmax(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Rows of at most 16 numbers, one of which is −∞."""
    x_RN = case.random(case.B * case.G, min(case.E, 16), seed=77).mul(4)
    x_RN = x_RN.to(FP64 if dtype == FP64 else FP32)
    x_RN[:1, 1:2] = -math.inf
    forward = "row_softmax", (x_RN,)
    yield forward
    grad_RN = case.random(*x_RN.shape, seed=78).to(x_RN.dtype)
    yield "row_softmax_backward", (grad_RN, expected(forward))


def gate_mm(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """fp32 products of rows of any type."""
    wide = FP64 if dtype == FP64 else FP32
    x_BD = case.random(case.B, case.D, seed=10).to(dtype)
    weight_DN = (case.random(case.D, case.G * case.E, seed=11) / case.D**0.5).to(wide)
    bias_N = case.random(case.G * case.E, seed=12).to(wide)
    grad_BN = case.random(case.B, case.G * case.E, seed=13).to(wide)
    yield "gate_mm", (x_BD, weight_DN, bias_N)
    yield "gate_mm_backward", (grad_BN, x_BD, weight_DN, *NEEDS)


def gated_combine(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Routed outputs, with unused picks."""
    rows_P, _, slots_BGK = _plan(case)
    y_PO = case.random(len(rows_P), case.H, seed=14).to(dtype)
    weights_BGK = case.random(*slots_BGK.shape, seed=15).to(FP64 if dtype == FP64 else FP32)
    grad_BGO = case.random(case.B, case.G, case.H, seed=16).to(dtype)
    yield "gated_combine", (y_PO, slots_BGK, weights_BGK)
    yield "gated_combine_backward", (grad_BGO, y_PO, slots_BGK, weights_BGK)


def dense_combine(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """A list of outputs, and one tensor of all."""
    wide = FP64 if dtype == FP64 else FP32
    y_EBO = case.random(case.E, case.B, case.H, seed=17).to(dtype)
    weights_BGE = case.random(case.B, case.G, case.E, seed=18).to(wide)
    grad_BGO = case.random(case.B, case.G, case.H, seed=19).to(dtype)
    for y in (list(y_EBO.unbind(0)), [y_EBO]):
        yield "dense_combine", (y, weights_BGE)
        yield "dense_combine_backward", (grad_BGO, y, weights_BGE)


def target_attention(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    """Rows with no events and with more than a block takes at a time; few, as each is a product."""
    wide = FP64 if dtype == FP64 else FP32
    rows = min(case.B, 40)
    # As many events however often a case is drawn, so that a graph can be replayed on another draw
    lengths_B = Case.random(case, rows, seed=23).mul(3).abs().int()
    lengths_B[: 2 if case.unused else 1] = 67
    lengths_B = lengths_B[case.random(rows, seed=22).argsort()]
    events, offsets_B1 = int(lengths_B.sum()), lengths_B.new_zeros(rows + 1)
    offsets_B1[1:] = lengths_B.cumsum(0)
    e_VD = case.random(events, case.D, seed=24)
    e_VD += e_VD.sign()  # an event near 0 has a large scale, whose gradient loses as many digits
    q_BD = case.random(rows, case.D, seed=25).to(dtype)
    given = e_VD.to(dtype), offsets_B1, q_BD
    for softmax, widths in ((False, [case.H]), (True, [case.H]), (True, [case.H, 9, 33])):
        layers = _attention_layers(case, rows, widths, wide)
        forward = "target_attention", (*given, *layers, case.random(1, seed=29).to(wide), softmax)
        yield forward
        weights_V = expected(forward)[1]
        grad_BD = (case.random(rows, case.D, seed=30) / max(case.D, 1)).to(dtype)
        grads = grad_BD, case.random(events, seed=31).div(9).to(wide)
        backward = (*grads, *given, *layers, weights_V, softmax)
        yield "target_attention_backward", backward


def _attention_layers(
    case: Case, rows: int, widths: Sequence[int], wide: torch.dtype
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor], Tensor]:

    def weight(seed: int, inputs: int, *outputs: int) -> Tensor:
        return (case.random(inputs, *outputs, seed=seed) / max(inputs, 1) ** 0.5).to(wide)

    pairs = list(enumerate(pairwise(widths)))
    return (
        weight(26, 2 * case.D, widths[0]),
        case.random(rows, widths[0], seed=27).to(wide),
        [weight(32 + i, before, after) for i, (before, after) in pairs],
        [case.random(after, seed=36 + i).to(wide) for i, (_, after) in pairs],
        weight(28, widths[-1]),
    )


def exchange(case: Case, dtype: torch.dtype) -> Iterator[Call]:
    if case.E % 4 == 0 and dtype != FP64:
        for way in ("pairs", "sums"):
            torch.manual_seed(0)
            given = exchange_arguments(case.experts_BGK(), case.E, case.D, dtype, way)
            yield from given.items()


EXCHANGE_CASES = (Case(40, 3, 2, 8, 24, 24), Case(33, 9, 2, 8, 17, 17, unused=True))
BUILDERS: Mapping[str, Callable[[Case, torch.dtype], Iterator[Call]]] = {
    function.__name__: function
    for function in (
        topk_gate,
        joint_select,
        route_plan,
        permute,
        unpermute,
        grouped_mm,
        gathered_mm,
        dense_mm,
        shared_mm,
        dense_mlp,
        mixed_towers,
        row_softmax,
        gate_mm,
        gated_combine,
        dense_combine,
        target_attention,
        exchange,
    )
}


def calls_of(name: str, few: bool = False) -> Iterator[tuple[str, Call]]:
    cases = EXCHANGE_CASES if name == "exchange" else FEW_CASES if few else CASES
    for case, dtype in product(cases, (FP32, BF16) if few else (FP32, BF16, FP64)):
        for call in BUILDERS[name](case, dtype):
            yield f"{case} {str(dtype).removeprefix('torch.')}", call


def expected(call: Call) -> Any:
    name, arguments = call
    return reference_of(name)(*arguments)


def as_numbers(call: Call, result: Any) -> Any:
    """The result itself, or the numbers in it where it is a message of sums.

    Sums in another order may differ in their last place, and their bytes in any.
    """
    name, arguments = call
    if name != "unpack_rows_backward":
        return result
    grad_RD, grad_weights_NGK, _, _, links_WL, wire, _ = arguments
    kind = grad_RD.shape[1], wire, grad_weights_NGK.dtype, 0
    return exchange_reference._split(result.cpu(), links_WL, *kind)


def _weights(case: Case) -> tuple[Tensor, Tensor]:
    weight_EDH = case.random(case.E, case.D, case.H, seed=21) / case.D**0.5
    return weight_EDH, case.random(case.E, case.H, seed=22)


def _weight_types(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    return (BF16, FP32) if dtype == BF16 else (dtype,)
