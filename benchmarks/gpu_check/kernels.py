"""Times one group of operators beside its alternatives: the most telling sizes first."""

import argparse
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_check.contest import (
    Call,
    Contest,
    Layer,
    Size,
    Timed,
    expert_of_rows,
    layers,
    sets_needed,
    sizes,
    timed,
)
from benchmarks.gpu_check.record import (
    EXIT_NO_TIME,
    FAILED,
    MEASURED,
    Record,
    opened_record,
    process_options,
)
from mmoe.ops import RoutePlan, route_plan
from mmoe.ops.product_choice import DenseProduct, GroupedProduct, dense_product, grouped_product

# Seconds of each group; what a stopped one has measured is kept, and the next run goes on from it
GROUPS = {"grouped-bf16": 62, "grouped-fp32": 34, "routing": 28, "dense": 22}
BF16, FP32 = torch.bfloat16, torch.float32
# Of the norm: roundings of bf16, sums in another order
TOLERANCE = {BF16: 2e-2, FP32: 1e-4}
LIMITS = ("copy", "bmm, even rows", "bf16 mm", "torch.topk", "mm")  # compute something else
RATE_SIZE = {"cuda": 8192, "cpu": 64}


def main(arguments: Sequence[str] | None = None) -> None:
    """A line for each contest; exit status 75 where the clock ended first."""
    options = process_options("kernels")
    options.add_argument("group", choices=tuple(GROUPS))
    options.add_argument("--seconds", type=float, default=60.0)
    settings = options.parse_args(arguments)
    record = opened_record(settings)
    ends_at, done, failed, waiting = time.monotonic() + settings.seconds, record.done(), 0, 0
    rates = _rates(record, settings)
    for name, make in plan(settings.group, settings.device, settings.small):
        if name in done:
            continue
        if time.monotonic() > ends_at:
            waiting += 1
            continue
        lost = sum(not _measure(contest, record, settings, rates) for contest in make())
        failed += lost
        if not lost:
            record.add(name, MEASURED, marks="all contests of a size")
    if failed:
        sys.exit(f"{failed} contests failed; the record says which")
    if waiting:
        print(f"the clock ended with {waiting} sizes to go: run it again")
        sys.exit(EXIT_NO_TIME)


def plan(group: str, device: str, small: bool) -> Iterator[tuple[str, Any]]:
    """Names of what is measured together, and what makes its contests."""
    if group == "routing":
        for B, E, width, dtype in _routing_sizes(small):
            kind = "bf16" if dtype == BF16 else "fp32"
            make = partial(routing, B, E, width, dtype, device)
            yield f"kernels/size/routing {kind} B={B} E={E} O={width}", make
        return
    builders = {"dense": (dense, gate, dense_ways)}.get(group, (grouped,))
    for size in _product_sizes(group, small):
        for builder in builders:
            name = f"kernels/size/{builder.__name__} {size.name}"
            yield name, partial(builder, size, device)


def _product_sizes(group: str, small: bool) -> Iterator[Size]:
    """Each size once; what targets speak of comes first."""
    if small:
        yield from sizes(FP32 if group == "grouped-fp32" else BF16, [64], [16], [4])
        return
    if group == "dense":
        yield from sizes(BF16, [16_384, 4_096, 65_536], [256, 512], [8, 32])
        yield from sizes(FP32, [4_096], [256], [8])
        return
    dtype = FP32 if group == "grouped-fp32" else BF16
    first = list(sizes(dtype, [16_384], [512], [8, 64]))
    every = sizes(dtype, [16_384, 4_096, 65_536], [512, 256, 1_024, 128], [8, 64, 256])
    yield from dict.fromkeys([*first, *every])


def _routing_sizes(small: bool) -> list[tuple[int, int, int, torch.dtype]]:
    if small:
        return [(32, 8, 16, FP32), (32, 8, 16, BF16)]
    rows, experts = (16_384, 4_096, 65_536), (64, 8, 256)
    return [(B, E, 256, BF16) for B in rows for E in experts] + [(16_384, 64, 256, FP32)]


def _rates(record: Record, settings: argparse.Namespace) -> dict[str, float]:
    """FLOP/s of one large product, by type: measured now, as clocks and temperatures change."""
    found = {}
    for name, dtype in (("bf16", BF16), ("fp32", FP32)):
        side = RATE_SIZE[settings.device] // (1 if dtype == BF16 else 2)
        contest = product_rate(dtype, side, settings.device)
        took = timed(contest.calls["mm"], settings.device)
        found[name] = contest.flops / took.low
        key = f"kernels/rate/{settings.group}/{name}"
        record.add(key, MEASURED, flops_per_second=found[name], side=side)
    return found


def _measure(
    contest: Contest, record: Record, settings: argparse.Namespace, rates: dict[str, float]
) -> bool:
    """Writes the line of one contest; whether all went well."""
    key, device = f"kernels/{contest.name}", settings.device
    took: dict[str, Timed] = {}
    errors: dict[str, str] = {}
    for who, call in contest.calls.items():
        try:
            took[who] = timed(call, device, contest.sets)
        # A compiler throws what it likes, and one rival must not cost the others
        except Exception as error:
            errors[who] = (str(error).splitlines() or [type(error).__name__])[0]
    values = _values(contest, took, rates)
    problem = errors.get("mmoe") or _differs(contest, took)
    left_out = {**contest.left_out, **errors}
    status = FAILED if problem else MEASURED
    record.add(key, status, **values, left_out=left_out, **({"reason": problem} if problem else {}))
    print(f"{key}: {problem or values['milliseconds']}", flush=True)
    return not problem


def _values(contest: Contest, took: dict[str, Timed], rates: dict[str, float]) -> dict[str, Any]:
    """What is known of a contest."""
    values: dict[str, Any] = {
        "milliseconds": {who: round(t.seconds * 1e3, 5) for who, t in took.items()},
        "range": {who: [round(t.low * 1e3, 5), round(t.high * 1e3, 5)] for who, t in took.items()},
        "not_captured": [who for who, t in took.items() if not t.captured],
        "sets": contest.sets,
    }
    if "mmoe" not in took:
        return values
    ours = took["mmoe"].seconds
    values["times_as_long"] = {
        who: round(t.seconds / ours, 3) for who, t in took.items() if who != "mmoe"
    }
    if contest.flops:
        kind = "fp32" if " fp32 " in contest.name or contest.name.startswith("gate_mm") else "bf16"
        values["share_of_product_rate"] = round(contest.flops / ours / rates[kind], 4)
    if contest.moved:
        values["gigabytes_per_second"] = round(contest.moved / ours / 1e9, 2)
    return values


def _differs(contest: Contest, took: dict[str, Timed]) -> str:
    """Who computes something else than ours, if anybody."""
    if "mmoe" not in took:
        return ""
    ours = _tensors(contest.calls["mmoe"](0))
    for who in took:
        if who == "mmoe" or who in LIMITS:
            continue
        for mine, other in zip(ours, _tensors(contest.calls[who](0)), strict=False):
            error = float((mine.double() - other.double()).norm() / other.double().norm())
            if not error <= TOLERANCE.get(mine.dtype, 0.0):
                return f"{who} gives other numbers: a relative error of {error:.3g}"
    return ""


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.numel() else []
    return [tensor for part in value for tensor in _tensors(part)]


# Products of experts and gates beside `F.grouped_mm`, loops and cuBLAS's batched product

# The most that `F.grouped_mm` takes
LIBRARY_EXPERTS = 1023
# Of ours: what the operator chooses, and either of its products, which need not be the chosen one
PRODUCTS: dict[str, GroupedProduct] = {
    "mmoe": "auto",
    "mmoe, own product": "own",
    "mmoe, library's product": "library",
}


def grouped(size: Size, device: str) -> Iterator[Contest]:
    """The layer of each expert on its rows: plain, with bias and ReLU, and the gradients."""
    sets = layers(size, device)
    moved = sets[0].size_in_bytes
    names = (("forward", "none"), ("forward+bias+relu", "relu"))
    for name, activation in names:
        calls = _forward_calls(sets, activation)
        left_out = _without_library(calls, size, device)
        triton, missing = scattermoe(sets, fused=activation != "none")
        calls |= triton
        left_out |= missing
        yield Contest(
            f"grouped_mm {name} {size.name}", calls, len(sets), size.flops, moved, left_out
        )
    calls = _backward_calls(sets)
    left_out = _without_library(calls, size, device)
    name = f"grouped_mm backward {size.name}"
    yield Contest(name, calls, len(sets), 2 * size.flops, 2 * moved, left_out)


def _without_library(calls: dict[str, Call], size: Size, device: str) -> dict[str, str]:
    """Leaves `F.grouped_mm` out where it is no contestant, and says why."""
    why = _no_library(size, device)
    if why:
        del calls["F.grouped_mm"]
    return {"F.grouped_mm": why} if why else {}


def _no_library(size: Size, device: str) -> str:
    """Why `F.grouped_mm` is no contestant."""
    if not hasattr(F, "grouped_mm"):
        return f"torch {torch.__version__} has no F.grouped_mm"
    if device == "cuda" and size.dtype != torch.bfloat16:
        return "F.grouped_mm takes bfloat16 alone on a GPU"
    return "" if size.E <= LIBRARY_EXPERTS else f"more than {LIBRARY_EXPERTS} experts"


def _forward_calls(sets: Sequence[Layer], activation: str) -> dict[str, Call]:
    ours = torch.ops.mmoe.grouped_mm
    fused = activation != "none"
    experts = [expert_of_rows(own) for own in sets] if fused else []

    def mmoe(n: int) -> object:
        own = sets[n]
        bias_EH = own.bias_EH if fused else None
        return ours(own.x_PD, own.offsets_E1, own.weight_EDH, bias_EH, activation)

    def library(n: int) -> object:
        own = sets[n]
        y_PH = F.grouped_mm(own.x_PD, own.weight_EDH, offs=own.offsets_E1[1:])
        return (y_PH + own.bias_EH[experts[n]]).relu() if fused else y_PH

    def loop(n: int) -> object:
        own = sets[n]
        y_PH = torch.empty_like(own.grad_PH)
        for e, rows in enumerate(_slices(own)):
            if not fused:
                torch.mm(own.x_PD[rows], own.weight_EDH[e], out=y_PH[rows])
            else:
                torch.addmm(own.bias_EH[e], own.x_PD[rows], own.weight_EDH[e], out=y_PH[rows])
        return y_PH.relu_() if fused else y_PH

    others = {"F.grouped_mm": library, "loop of mm": loop, **_batched(sets)}
    return {**_both_products(mmoe, sets[0]), **others}


def _both_products(call: Call, own: Layer) -> dict[str, Call]:
    """Ours as the operator chooses and, in bf16, with each of its products: fp32 has one."""
    device, bf16 = own.x_PD.device, own.x_PD.dtype == torch.bfloat16

    def taking(product: GroupedProduct) -> Call:
        def run(n: int) -> object:
            with grouped_product(product, device):
                return call(n)

        return run

    return {who: taking(product) for who, product in PRODUCTS.items() if bf16 or who == "mmoe"}


def _batched(sets: Sequence[Layer]) -> dict[str, Call]:
    """CuBLAS's batched product on as many rows for each expert: what even routing would give."""
    E, D, _ = sets[0].weight_EDH.shape
    rows = len(sets[0].x_PD) // E
    if rows == 0:
        return {}
    x_END = [own.x_PD[: rows * E].view(E, rows, D) for own in sets]
    return {"bmm, even rows": lambda n: torch.bmm(x_END[n], sets[n].weight_EDH)}


def _backward_calls(sets: Sequence[Layer]) -> dict[str, Call]:
    ours = torch.ops.mmoe.grouped_mm_backward

    def mmoe(n: int) -> object:
        own = sets[n]
        layer = own.grad_PH, own.x_PD, own.offsets_E1, own.weight_EDH
        return ours(*layer, own.grad_PH, own.grad_PH.new_empty(0), "none", True, True, False)

    def library(n: int) -> object:
        own, ends_E = sets[n], sets[n].offsets_E1[1:]
        return (
            F.grouped_mm(own.grad_PH, own.weight_EDH.mT, offs=ends_E),
            F.grouped_mm(own.x_PD.t(), own.grad_PH, offs=ends_E),
        )

    def loop(n: int) -> object:
        own = sets[n]
        grad_x, grad_weight = torch.empty_like(own.x_PD), torch.empty_like(own.weight_EDH)
        for e, rows in enumerate(_slices(own)):
            torch.mm(own.grad_PH[rows], own.weight_EDH[e].t(), out=grad_x[rows])
            torch.mm(own.x_PD[rows].t(), own.grad_PH[rows], out=grad_weight[e])
        return grad_x, grad_weight

    others = {"F.grouped_mm": library, "loop of mm": loop}
    return {**_both_products(mmoe, sets[0]), **others}


def _slices(own: Layer) -> list[slice]:
    return [slice(a, b) for a, b in zip(own.bounds, own.bounds[1:], strict=False)]


def few_layers(size: Size, device: str) -> list[Layer]:
    """Three sets on a GPU: all experts on all rows write more than a cache holds."""
    return [Layer.draw(size, device, seed) for seed in range(1 if device == "cpu" else 3)]


def dense(size: Size, device: str) -> Iterator[Contest]:
    sets = few_layers(size, device)
    ours = torch.ops.mmoe.dense_mm

    def loop(n: int) -> object:
        own = sets[n]
        pairs = zip(own.weight_EDH, own.bias_EH, strict=True)
        return [torch.addmm(bias_H, own.x_PD, weight_DH).relu_() for weight_DH, bias_H in pairs]

    def batched(n: int) -> object:
        own = sets[n]
        x_EPD = own.x_PD.expand(size.E, -1, -1)
        y_EPH = torch.baddbmm(own.bias_EH.unsqueeze(1), x_EPD, own.weight_EDH).relu_()
        return y_EPH.unbind(0)

    def mmoe(n: int) -> object:
        own = sets[n]
        return ours([own.x_PD], own.weight_EDH, own.bias_EH, "relu")

    calls: dict[str, Call] = {"mmoe": mmoe, "loop of addmm": loop, "baddbmm": batched}
    yield Contest(f"dense_mm forward {size.name}", calls, len(sets), size.E * size.flops)


def gate(size: Size, device: str) -> Iterator[Contest]:
    sets = few_layers(size, device)
    weights = [own.weight_EDH[0].float().contiguous() for own in sets]
    calls: dict[str, Call] = {
        "mmoe": lambda n: torch.ops.mmoe.gate_mm(sets[n].x_PD, weights[n], None),
        "bf16 mm": lambda n: torch.mm(sets[n].x_PD, sets[n].weight_EDH[0]),
    }
    yield Contest(f"gate_mm forward {size.name}", calls, len(sets), size.flops)


def product_rate(dtype: torch.dtype, size: int, device: str) -> Contest:
    x, w = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return Contest(f"mm {size}", {"mm": lambda _: torch.mm(x, w)}, 1, 2.0 * size**3)


# `dense_mm` beside itself: products straight into their results, or one batch for all experts.
# `csrc/cuda/gemm/dense_choice.cu` chooses by size; what is measured here says whether rightly.
# Times of captured graphs leave the host's launches out: a contest that was not captured counts
# them too

WAYS: dict[str, DenseProduct] = {
    "mmoe": "auto", "mmoe, straight": "straight", "mmoe, batched": "batched"
}  # fmt: skip


def dense_ways(size: Size, device: str) -> Iterator[Contest]:
    sets = few_layers(size, device)
    for activation in ("none", "relu", "gelu"):
        calls = {who: _dense_call(sets, way, activation, device) for who, way in WAYS.items()}
        name = f"dense_mm ways {activation} {size.name}"
        yield Contest(name, calls, len(sets), size.E * size.flops)


def _dense_call(sets: list[Layer], way: DenseProduct, activation: str, device: str) -> Call:
    def call(n: int) -> object:
        own = sets[n]
        with dense_product(way, device):
            op = torch.ops.mmoe.dense_mm
            return op([own.x_PD], own.weight_EDH, own.bias_EH, activation)

    return call


# Gate, plan, permute and combine beside a copy of as many bytes


def routing(B: int, E: int, width: int, dtype: torch.dtype, device: str) -> Iterator[Contest]:
    G, K, size = 4, 2, dtype.itemsize
    torch.manual_seed(0)
    logits_BGE = torch.randn(B, G, E, device=device)
    visible_GE = torch.ones(G, E, dtype=torch.bool, device=device)
    experts_BGK = logits_BGE.topk(K, dim=-1).indices.int()
    whole = route_plan(experts_BGK, E)
    pairs = int(whole.offsets_E1[-1])
    plan = whole._replace(rows_P=whole.rows_P[:pairs])
    name = f"{'bf16' if size == 2 else 'fp32'} B={B} E={E} O={width}"
    ops = torch.ops.mmoe
    yield _beside_copy(
        f"topk_gate {name}",
        {
            "mmoe": lambda _: ops.topk_gate(logits_BGE, visible_GE, K, True),
            "torch.topk": lambda _: logits_BGE.topk(K, dim=-1)[0].softmax(-1),
        },
        4 * B * G * (E + 2 * K),
        device,
    )
    plans: dict[str, Call] = {"mmoe": lambda _: ops.route_plan(experts_BGK, E)}
    yield _beside_copy(f"route_plan {name}", plans, 4 * (2 * B * G * K + pairs), device)
    yield from _row_contests(plan, B, width, dtype, name, device)


def _row_contests(
    plan: RoutePlan, B: int, width: int, dtype: torch.dtype, name: str, device: str
) -> Iterator[Contest]:
    ops, (_, G, K), size = torch.ops.mmoe, plan.slots_BGK.shape, dtype.itemsize
    pairs, long_BGK = len(plan.rows_P), plan.slots_BGK.long()
    count = sets_needed(size * width * (B + pairs), device)
    x = [torch.randn(B, width, device=device).to(dtype) for _ in range(count)]
    y = [torch.randn(pairs, width, device=device).to(dtype) for _ in range(count)]
    weights_BGK = torch.rand(B, G, K, device=device)
    narrow_BGK = weights_BGK.to(dtype).unsqueeze(-1)
    grad_BGO = torch.randn(B, G, width, device=device).to(dtype)
    moved = size * width * (B + pairs)
    permute: dict[str, Call] = {
        "mmoe": lambda n: ops.permute(x[n], plan.rows_P, plan.slots_BGK),
        "index_select": lambda n: x[n].index_select(0, plan.rows_P),
    }
    yield _beside_copy(f"permute {name}", permute, moved, device, count)
    unpermute: dict[str, Call] = {
        "mmoe": lambda n: ops.unpermute(y[n], plan.rows_P, plan.slots_BGK),
        "index_add": lambda n: torch.zeros_like(x[n]).index_add_(0, plan.rows_P, y[n]),
    }
    yield _beside_copy(f"unpermute {name}", unpermute, moved, device, count)
    combine: dict[str, Call] = {
        "mmoe": lambda n: ops.gated_combine(y[n], plan.slots_BGK, weights_BGK),
        "gather": lambda n: (y[n][long_BGK] * narrow_BGK).sum(2),
    }
    moved = size * width * (pairs + B * G)
    yield _beside_copy(f"gated_combine {name}", combine, moved, device, count)
    backward: dict[str, Call] = {
        "mmoe": lambda n: ops.gated_combine_backward(grad_BGO, y[n], plan.slots_BGK, weights_BGK)
    }
    moved = size * width * (2 * pairs + B * G)
    yield _beside_copy(f"gated_combine_backward {name}", backward, moved, device, count)


def _beside_copy(
    name: str, calls: dict[str, Call], moved: int, device: str, sets: int = 1
) -> Contest:
    return Contest(name, {**calls, "copy": copy_of(moved, sets, device)}, sets, moved=moved)


def copy_of(moved: int, sets: int, device: str) -> Call:
    half = max(moved // 2, 1)
    sources = [torch.ones(half, dtype=torch.uint8, device=device) for _ in range(sets)]
    targets = [torch.empty_like(source) for source in sources]
    return lambda n: targets[n].copy_(sources[n])


# A product of experts in Triton: ScatterMoE's, where that package is installed

SCATTERMOE = "scattermoe"


def scattermoe(sets: Sequence[Layer], fused: bool) -> tuple[dict[str, Call], dict[str, str]]:
    """Its product of rows that lie sorted already, and why it is no contestant where it is none."""
    if not sets[0].x_PD.is_cuda:
        return {}, {SCATTERMOE: "a Triton kernel needs a GPU"}
    try:
        linear = importlib.import_module(f"{SCATTERMOE}.parallel_experts").parallel_linear
        takes = inspect.signature(linear).parameters
        given = [_scattermoe_arguments(own, takes) for own in sets]
    # What a package of any version throws while it is imported must not cost the others
    except Exception as error:
        return {}, {SCATTERMOE: f"{type(error).__name__}: {str(error)[:200]}"}
    return {SCATTERMOE: _scattermoe_call(sets, given, linear, fused)}, {}


def _scattermoe_arguments(own: Layer, takes: Any) -> dict[str, Any]:
    """As its versions name them: rows are in order, so each is its own place."""
    experts_P = expert_of_rows(own)
    given: dict[str, Any] = {
        "k": 1, "sorted_expert_idxs": experts_P,
        "sorted_scattered_idxs": torch.arange(len(experts_P), device=experts_P.device),
        "expert_offsets": own.offsets_E1[1:].long(), "grouped_in": True, "grouped_out": True,
    }  # fmt: skip
    if "padded_block_idxs" in takes:  # of earlier versions
        kernels = importlib.import_module(f"{SCATTERMOE}.kernels.ops")
        blocks, offsets = kernels.padded_block_indices(experts_P, len(own.weight_EDH))
        given |= {"padded_block_idxs": blocks, "expert_offsets": offsets}
    return given


def _scattermoe_call(
    sets: Sequence[Layer],
    given: Sequence[dict[str, Any]],
    linear: Callable[..., Tensor],
    fused: bool,
) -> Call:
    within = fused and "expert_biases" in inspect.signature(linear).parameters
    experts = [expert_of_rows(own) for own in sets] if fused and not within else []

    def call(n: int) -> object:
        own = sets[n]
        bias = {"expert_biases": own.bias_EH} if within else {}
        y_PH = linear(own.x_PD, own.weight_EDH, **given[n], **bias)
        if experts:
            y_PH = y_PH + own.bias_EH[experts[n]]
        return y_PH.relu() if fused else y_PH

    return call


if __name__ == "__main__":
    main()
