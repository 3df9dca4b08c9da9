"""What every emulated kernel is held to, by operator: the battery that mutations run against.

A check calls one operator with fixed arguments on the device and compares with the specification,
or hands it a number out of range and expects the kernel to stop. Results are computed before any
mutation is switched on.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

import torch
from torch import Tensor

from benchmarks.gpu_check.operator_cases import (
    BUILDERS,
    FP64,
    Call,
    Case,
    as_numbers,
    expected,
)
from benchmarks.gpu_check.operator_cases import CASES as OPERATOR_CASES
from mmoe.ops._products import GroupedProduct
from tests.emulated_cuda.changes import changed_calls
from tests.emulated_cuda.check import Check
from tests.emulated_cuda.device import Kernels, Settings
from tests.emulated_cuda.random_cases import (
    KINDS,
    PLANNING,
    WIRES,
    drawn_calls,
    drawn_case,
    drawn_exchange,
    laid_out,
    rows_cut_out,
    shifted,
)
from tests.ops.exchange_world import CASES as WORLDS
from tests.ops.exchange_world import World

FP32, BF16 = torch.float32, torch.bfloat16
TYPES = (FP32, BF16, FP64)
_EMPTY = (Case(0, 2, 2, 4, 16, 16), Case(3, 2, 1, 4, 5, 0))
_USUAL = (
    *OPERATOR_CASES[:3],
    Case(257, 5, 3, 20, 8, 9, unused=True),
    Case(64, 1, 1, 150, 66, 10),
    Case(256, 2, 1, 4, 16, 136),
    *_EMPTY,
)
# As many experts as a launch takes pointers, and one more
_TABLES = (Case(3, 2, 1, 124, 8, 8), Case(3, 9, 1, 125, 8, 8), Case(3, 1, 1, 128, 8, 8))
_EXCHANGED = (
    Case(2, 1, 1, 4, 3, 3),
    Case(40, 3, 2, 8, 24, 24),
    Case(33, 9, 2, 8, 17, 17, unused=True),
    Case(70, 2, 3, 4, 65, 65),
)
_SMALL = OPERATOR_CASES[2]
CASES: Mapping[str, Sequence[Case]] = {
    "exchange": _EXCHANGED,
    "dense_combine": (*_USUAL[:3], *_TABLES[:2], Case(4, 70, 1, 3, 8, 8), *_EMPTY),
    "grouped_mm": (_USUAL[2], *_EMPTY),
    "gathered_mm": (*_USUAL[1:3], *_EMPTY),
    "dense_mm": (*_USUAL[1:3], _TABLES[2], *_EMPTY),
}
# Rows of each expert, D, H; small and large tiles, parts of the weights' gradient, copies of 16, 8,
# 4 and 2 bytes, several tiles in both directions, depths of one and of many steps
LAYERS = (
    ((70, 0, 3), 40, 24),
    ((5, 130, 1), 33, 17),
    ((300,), 130, 136),
    ((1100,), 20, 12),
    ((0, 64, 65), 18, 260),
    ((200, 201), 6, 262),
    ((33,), 300, 4),
    ((9, 0, 20), 16, 5),
    ((1, 0, 0, 2) * 9, 1, 3),
)


def battery(kernels: Kernels, operators: Sequence[str]) -> list[Check]:
    """Makes the checks of some builders, the quick ones first; each passes without a mutation."""
    plain = [check for operator in operators for check in _calls(operator)]
    of_library = [_by_the_library(check) for check in plain if _has_two_products(check)]
    gathered = [check for check in of_library if check.operator == "gathered_mm"]
    changed = *changed_calls(kernels, plain), *changed_calls(kernels, gathered)
    return [*plain, *_otherwise(plain), *of_library, *changed]


def _has_two_products(check: Check) -> bool:
    """PyTorch's beside our own: of rows in bfloat16."""
    of_rows = (leaf.dtype for leaf in check.call[1] if isinstance(leaf, Tensor))
    return check.operator in ("grouped_mm", "gathered_mm") and next(of_rows) == BF16


def _by_the_library(check: Check) -> Check:
    choice = "grouped_product", get_args(GroupedProduct).index("library")
    return replace(check, settings=Settings(capability=9), choice=choice)


def _calls(operator: str) -> Iterator[Check]:
    given = list(_given(operator))
    for words, call in given:
        yield Check(words, operator, call, as_numbers(call, expected(call)), Settings())
    if operator == "topk_gate":
        yield _more_picks_than_experts()


def _given(operator: str) -> Iterator[tuple[str, Call]]:
    if operator == "topk_gate":
        yield from _gates_that_see_little()
    if operator == "grouped_mm":
        yield from _layers()
        yield from _layers_cut_out()
        yield from _layers_finished_in_place()
    if operator == "exchange":
        yield _all_codes_that_there_are()
    if operator == "dense_combine":
        for dtype in TYPES:
            for name, arguments in rows_cut_out(dtype):
                yield f"{name}, rows cut out, {dtype}", (name, arguments)
    for case, dtype in product(CASES.get(operator, _USUAL), TYPES):
        for call in BUILDERS[operator](case, dtype):
            words = f"{call[0]}, {case} {str(dtype).removeprefix('torch.')}"
            yield words, call
            if case == _SMALL and dtype != FP64:
                yield from _less_wanted(words, call)
    yield from _drawn(operator)


def _less_wanted(words: str, call: Call) -> Iterator[tuple[str, Call]]:
    """Gradients of x, weight and bias: each alone, and none."""
    name, arguments = call
    if all(value is True for value in arguments[-3:]):
        for needs in (
            (True, False, False),
            (False, True, False),
            (False, False, True),
            (False,) * 3,
        ):
            yield f"{words}, wanted {needs}", (name, (*arguments[:-3], *needs))


def _drawn(operator: str) -> Iterator[tuple[str, Call]]:
    """Drawn shapes, in inconvenient memory."""
    if operator == "exchange":
        yield from _drawn_ranks()
        return
    for (kind, make), dtype in product(KINDS.items(), TYPES):
        draw = random.Random(f"{operator} {kind} {dtype}")
        for name, arguments in drawn_calls(operator, drawn_case(make, draw), dtype, draw):
            yield f"{name}, {kind}, {dtype}", (name, laid_out(arguments, "cpu", draw))
            if kind == "packed":
                yield f"{name}, {kind}, shifted, {dtype}", (name, shifted(arguments))


def _drawn_ranks() -> Iterator[tuple[str, Call]]:
    """Ranks in inconvenient memory; and those of the operators' own tests, some without rows."""
    for name, wire, seed in product(PLANNING, WIRES, range(2)):
        draw = random.Random(f"{name} {wire} {seed}")
        _, arguments = drawn_exchange(name, *wire, draw)
        yield f"{name}, ranks {seed}, {wire}", (name, laid_out(arguments, "cpu", draw))
    alone = replace(
        WORLDS[0], name="one rank, anything", rows=(9,), held=((0, 1),), picks="anything"
    )
    crowd = replace(WORLDS[0], name="as many sources as there may be", S=64)
    for case in (*WORLDS, alone, crowd):
        if sum(case.rows) < 100:
            world = World(case)
            for (name, given), rank in product(PLANNING.items(), range(case.W)):
                arguments = getattr(world, given)(rank)
                yield f"{name}, {case.name}, rank {rank}", (name, arguments)
                if any(isinstance(a, Tensor) and a.dtype == torch.uint8 for a in arguments):
                    words = f"{name}, {case.name}, rank {rank}, at an odd address"
                    yield words, (name, shifted(arguments))


def _gates_that_see_little() -> Iterator[tuple[str, Call]]:
    """As many experts as picks, infinities; picks that are not used, or repeat."""
    for E, dtype, after in product((5, 16, 17, 40), TYPES, (True, False)):
        generator = torch.Generator().manual_seed(E)
        logits_BGE = torch.randn(30, 3, E, generator=generator).mul(3).round().to(dtype)
        chance = torch.rand(logits_BGE.shape, generator=generator)
        logits_BGE[chance > 0.9] = torch.inf
        logits_BGE[chance > 0.95] = -torch.inf
        visibility_GE = torch.rand(3, E, generator=generator) < 0.5
        visibility_GE[2] = False
        visibility_GE[:, -3:] = True
        forward = "topk_gate", (logits_BGE, visibility_GE, 3, after)
        yield f"a gate that sees three of {E}, {dtype}", forward
        finite_BGE = logits_BGE.nan_to_num(0, 9, -9)
        weights_BGK = expected(forward)[0]
        experts_BGK = torch.randint(-1, E, weights_BGK.shape, generator=generator).int()
        grad_BGK = torch.randn(weights_BGK.shape, generator=generator).to(weights_BGK.dtype)
        backward = (grad_BGK, finite_BGE, visibility_GE, experts_BGK, after)
        yield f"picks of {E} that are not used, {dtype}", ("topk_gate_backward", backward)


def _more_picks_than_experts() -> Check:
    """What the CPU refuses, and a kernel cannot: the picks that are not there are -1."""
    visibility_GE = torch.zeros(1, 20, dtype=torch.bool)
    visibility_GE[0, 7] = True
    call = "topk_gate", (torch.randn(3, 1, 20), visibility_GE, 3, True)
    wanted = torch.tensor([1.0, 0, 0]).expand(3, 1, 3), torch.tensor([7, -1, -1]).int()
    return Check(
        "more picks than experts",
        "topk_gate",
        call,
        (wanted[0], wanted[1].expand(3, 1, 3)),
        Settings(),
    )


def _layers() -> Iterator[tuple[str, Call]]:
    activations = ("gelu", "relu", "silu", "none")
    types = ((FP32, FP32), (BF16, BF16), (BF16, FP32), (FP64, FP64))
    for number, ((sizes, D, H), (rows, weights)) in enumerate(product(LAYERS, types)):
        generator = torch.Generator().manual_seed(number)
        offsets_E1 = torch.tensor([0, *sizes]).cumsum(0).int()
        pairs = int(offsets_E1[-1])
        x_PD, grad_PH = (torch.randn(pairs + 5, n, generator=generator) for n in (D, H))
        x_PD[pairs:] = grad_PH[pairs:] = torch.nan
        weight_EDH = torch.randn(len(sizes), D, H, generator=generator) / D**0.5
        bias_EH = torch.randn(len(sizes), H, generator=generator)
        activation = activations[number % 4 if number % 8 < 4 else (number + 1) % 4]
        layer = x_PD.to(rows), offsets_E1, weight_EDH.to(weights)
        forward = "grouped_mm", (*layer, bias_EH.to(weights), activation)
        words = f"rows {sizes}, D {D}, H {H}, {rows}, {weights}, {activation}"
        yield words, forward
        kept = expected(forward)
        backward = (grad_PH.to(rows), *layer, *kept, activation, True, True, True)
        yield f"gradients, {words}", ("grouped_mm_backward", backward)


def _layers_cut_out() -> Iterator[tuple[str, Call]]:
    """Wide enough for copies of 16 bytes, in memory that allows 8, 4 or 2."""
    wide = Case(40, 2, 1, 3, 32, 16)
    for dtype, by in ((FP32, 1), (FP32, 2), (BF16, 1), (BF16, 2), (BF16, 4), (FP64, 1)):
        for name, arguments in BUILDERS["grouped_mm"](wide, dtype):
            yield f"{name}, {by} numbers after 16 bytes, {dtype}", (name, shifted(arguments, by))


def _layers_finished_in_place() -> Iterator[tuple[str, Call]]:
    """Where PyTorch's product is as wide as the result: with and without bias and activation."""
    offsets_E1 = torch.tensor([0, 9, 9, 29], dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)
    x_PD, weight_EDH, bias_EH = (
        torch.randn(shape, generator=generator).to(BF16)
        for shape in ((31, 16), (3, 16, 24), (3, 24))
    )
    for bias, activation in product((bias_EH, None), ("none", "relu")):
        words = f"finished in place, {'no ' if bias is None else ''}bias, {activation}"
        yield words, ("grouped_mm", (x_PD, offsets_E1, weight_EDH, bias, activation))


def _all_codes_that_there_are() -> tuple[str, Call]:
    """A rank whose experts have as many codes, a pick and an expert each, as int32 has numbers."""
    picks, E = 2**20, 2047
    experts_BGK = torch.empty(0, 1, picks, dtype=torch.int32)
    homes_E3 = torch.zeros(E, 3, dtype=torch.int32)
    homes_E3[:, 1] = torch.arange(E)
    return "as many codes as there may be", ("outbound_plan", (experts_BGK, homes_E3, 1, 1))


def _otherwise(checks: Sequence[Check]) -> Iterator[Check]:
    """Again in other orders, with early copies, and with the products that other GPUs have."""
    for number, check in enumerate(checks):
        if number % 3 == 0:
            yield replace(check, settings=Settings("backward", copies="early"))
        if number % 3 == 1:
            yield replace(check, settings=Settings("shuffled", seed=number + 1))
        if check.operator in ("grouped_mm", "gathered_mm"):
            yield replace(check, settings=Settings(capability=9))
        if check.operator == "dense_mm":
            yield replace(check, choice=("dense_product", 1 + number % 2))
