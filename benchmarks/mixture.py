"""Races our layer against the alternatives, prints a table and, last, one JSON line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.racing.harness import (
    DTYPES,
    Clock,
    ProductRates,
    Race,
    Result,
    Spread,
    Target,
    Times,
    clock_of,
    keys_of,
    options,
    print_details,
    run,
    speedup,
)
from benchmarks.racing.layers import (
    Contestant,
    GivenLogits,
    GroupedMMLayer,
    IndexLayer,
    LoopMixture,
    MaskLayer,
    Values,
    Workload,
    alternative,
    alternatives,
    check_equal,
    contestant,
    correlated_logits,
    distinct_pairs,
    draw,
    leaf,
    one_layer_per_gate,
    our_layer,
    ours,
    skewed_logits,
    trained_logits,
)
from mmoe import ops
from mmoe.mixture import Capacity, DispatchPlan
from mmoe.ops import RoutePlan, unpermute
from mmoe.ops.dispatch import permute


@dataclass(frozen=True)
class Bench:
    clock: Clock
    rates: ProductRates

    @property
    def device(self) -> str:
        return self.clock.device

    def compare(
        self, name: str, contestants: Mapping[str, Contestant], tolerance: float, **settings: Any
    ) -> Times:
        """Checks that all compute the same, then races them."""
        check_equal(name, contestants, tolerance)
        return self.clock.race(name, {key: c.step for key, c in contestants.items()}, **settings)


# The dense mixture: B 4096, D 330, 8 experts 256-128, 2 linear softmax gates

DENSE = Workload(B=4096, D=330, hidden=(256, 128), E=8, G=2)


def fp32(bench: Bench) -> list[Result]:
    work = replace(DENSE, device=bench.device)
    values = draw(work)
    contestants = {"mmoe": ours(work, values), **alternatives("loop", LoopMixture, work, values)}
    times = bench.compare("dense fp32", contestants, work.tolerance)
    versus = [speedup(f"vs_loop_dense_fp32{end}", times, f"loop{end}") for end in endings(times)]
    return [_rate("gemm_share_dense_fp32", work, times, "fp32"), *versus]


def bf16(bench: Bench) -> list[Result]:
    """Parameters in bf16 on both sides."""
    work = replace(DENSE, device=bench.device, dtype=torch.bfloat16)
    values = draw(work)
    contestants = {"mmoe": ours(work, values), "loop": alternative(LoopMixture, work, values)}
    times = bench.compare("dense bf16", contestants, work.tolerance)
    versus = speedup("vs_loop_dense_bf16_parameters", times, "loop", note="bf16 parameters")
    return [_rate("gemm_share_dense_bf16", work, times, "bf16"), versus]


def autocast(bench: Bench) -> list[Result]:
    """fp32 parameters under bf16 autocast on both sides."""
    work = replace(DENSE, device=bench.device)
    values = draw(work)
    around = partial(torch.autocast, bench.device, torch.bfloat16)
    # The outputs are bf16, and so is the gradient that comes back.
    values = replace(values, grad_BGO=values.grad_BGO.bfloat16())
    contestants = {
        "mmoe": ours(work, values, around=around),
        "loop": alternative(LoopMixture, work, values, around=around),
    }
    times = bench.compare("dense autocast", contestants, 2e-2)
    return [speedup("vs_loop_dense_bf16", times, "loop", note="autocast on both sides")]


def _rate(key: str, work: Workload, times: Times, dtype_name: str) -> Result:
    spread = Spread.of([work.dense_flops() / spent for spent in times.seconds["mmoe"]])
    return Result(key, spread, times.ms("mmoe"), product_rate=dtype_name)


def endings(times: Times) -> list[str]:
    return [name.partition("_")[1] + name.partition("_")[2] for name in times.seconds][1:]


DENSE_RACES = (
    Race({"gemm_share_dense_fp32": Target(0.70), "vs_loop_dense_fp32": Target(2.0)}, fp32),
    Race({"gemm_share_dense_bf16": Target(0.75)}, bf16),
    Race({"vs_loop_dense_bf16": Target(1.3)}, autocast),
)


# The sparse layer: 4096 rows, d 256, hidden 512, top-2, gate included

SPARSE = Workload(B=4096, D=256, hidden=(512, 256), E=8, k=2)
EXPERTS = (8, 64, 256)
Layer = Callable[[Workload, Values], nn.Module]


def against(
    bench: Bench, *, key: str, kind: Layer, num_experts: int, dtype: torch.dtype = torch.float32
) -> list[Result]:
    work = replace(SPARSE, E=num_experts, dtype=dtype, device=bench.device)
    values = draw(work)
    contestants = {"mmoe": ours(work, values), **alternatives("other", kind, work, values)}
    times = bench.compare(key, contestants, work.tolerance)
    return [speedup(f"{key}{end}", times, f"other{end}") for end in endings(times)]


def planning_share(bench: Bench) -> list[Result]:
    work = replace(SPARSE, device=bench.device)
    values = draw(work)
    whole, rest = ours(work, values, execution="grouped"), _without_experts(work, values)
    times = bench.clock.race("planning_share", {"whole": whole.step, "rest": rest.step})
    note = "other: gate, plan, sums of gradients, combine alone"
    return [speedup("planning_share", times, "rest", "whole", note)]


class FreeExperts(nn.Module):
    """Stands where the experts stand and only hands out what lies ready."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        assert work.k is not None
        pairs = work.B * work.G * work.k
        self.num_experts, self.output_dim = work.E, work.output_dim
        self.y_PO = torch.randn(pairs, work.output_dim, device=work.device).to(work.dtype)
        self.grad_PD = torch.randn(pairs, work.D, device=work.device).to(work.dtype)

    def __len__(self) -> int:
        return self.num_experts

    def gathered(self, x_BD: Tensor, plan: RoutePlan) -> Tensor:
        return _Ready.apply(x_BD, plan, self.y_PO, self.grad_PD)


class _Ready(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BD: Tensor, plan: RoutePlan, y_PO: Tensor, grad_PD: Tensor) -> Tensor:
        pairs = len(plan.rows_P)
        ctx.plan, ctx.grad_PD = plan, grad_PD[:pairs]
        return y_PO[:pairs]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None, None, None]:
        # A sample's pairs are added up whatever the experts cost
        return unpermute(ctx.grad_PD, ctx.plan), None, None, None


def _without_experts(work: Workload, values: Values) -> Contestant:
    layer: Any = our_layer(work, values, execution="grouped")
    layer.experts = FreeExperts(work)
    x_BD = leaf(values.x_BD)
    return contestant(lambda: [layer(x_BD).out_BGO], [values.grad_BGO], x_BD, [layer])


def _race(key: str, kind: Layer, num_experts: int, target: float, dtype: str = "fp32") -> Race:
    call = partial(against, key=key, kind=kind, num_experts=num_experts, dtype=DTYPES[dtype])
    return Race({key: Target(target)}, call)


SPARSE_RACES = (
    *(
        _race(f"vs_grouped_mm_E{num_experts}_{dtype}", GroupedMMLayer, num_experts, target, dtype)
        for dtype, target in (("fp32", 1.8), ("bf16", 1.15))
        for num_experts in EXPERTS
    ),
    _race("vs_naive_mask_E64", MaskLayer, 64, 30),
    _race("vs_naive_index_E256", IndexLayer, 256, 3),
    Race({"planning_share": Target(0.15, at_most=True)}, planning_share),
)


# Several gates over one pool: against a pass per gate, and against keeping the duplicates

FOUR_GATES = Workload(B=4096, D=256, hidden=(512, 256), E=64, G=4, k=2)
SHARED = {"independent": 0.0, "correlated": 0.8}
TRAINED_EXPERTS = (16, 64)
SKEW = 0.7  # exponent of the picks' power law over the experts


class KeepDuplicates:
    """A dispatcher for which every pick is a pair of its own, whoever else picked the same."""

    def dispatch(self, sources: Sequence[Tensor], plan: DispatchPlan) -> tuple[Tensor, Tensor, Any]:
        B, G, K = plan.experts_BGK.shape
        # As if every gate had its own samples: no two picks then name the same pair.
        apart = ops.route_plan(plan.experts_BGK.reshape(B * G, 1, K), plan.num_experts)
        slots_BGK = apart.slots_BGK.reshape(B, G, K)
        merged = ops.RoutePlan(apart.rows_P // G, apart.offsets_E1, slots_BGK)
        handle = (merged.slots_BGK, plan.weights_BGK)
        return permute(sources[0], merged), merged.offsets_E1, handle

    def combine(self, y_RO: Tensor, handle: Any) -> Tensor:
        return ops.gated_combine(y_RO, *handle)


def given(work: Workload, values: Values, logits_BGE: Tensor, **settings) -> Contestant:
    assert work.k is not None
    return ours(work, values, gate=GivenLogits(logits_BGE, work.k), **settings)


def _several(work: Workload, values: Values, logits_BGE: Tensor) -> dict[str, Contestant]:
    """All gates at once, gate by gate, and at once without looking for duplicates."""
    assert work.k is not None
    return {
        "mmoe": given(work, values, logits_BGE),
        "layers": one_layer_per_gate(work, values, logits_BGE, work.k),
        "merged": given(work, values, logits_BGE, dispatcher=KeepDuplicates()),
    }


def several_gates(bench: Bench, *, name: str) -> list[Result]:
    work = replace(FOUR_GATES, device=bench.device)
    assert work.k is not None
    logits_BGE = correlated_logits(work, SHARED[name])
    contestants = _several(work, draw(work), logits_BGE)
    times = bench.compare(f"{name} gates", contestants, work.tolerance)
    pairs, picks = distinct_pairs(logits_BGE, work.k)
    keys = {"layers": f"vs_t_layers_{name}", "merged": f"vs_merged_{name}"}
    note = f"{pairs:,} distinct pairs of {picks:,}"
    return [speedup(key, times, other, note=note) for other, key in keys.items()]


def trained(bench: Bench) -> list[Result]:
    """Gates as training leaves them, a few batches for each pool; the key is the worse pool's."""
    results = [_trained(bench, num_experts) for num_experts in TRAINED_EXPERTS]
    worst = min(results, key=lambda result: result.spread.median)
    return [replace(worst, key="vs_best_trained"), *results]


def _trained(bench: Bench, num_experts: int) -> Result:
    work = replace(FOUR_GATES, E=num_experts, device=bench.device)
    assert work.k is not None
    values = draw(work)
    times, notes = None, []
    batches = trained_logits(num_experts, work, bench.clock)
    for number, logits_BGE in enumerate(batches):
        contestants = _several(work, values, logits_BGE)
        contestants["dense"] = given(work, values, logits_BGE, execution="dense")
        name = f"trained gates, top-2 of {num_experts}, batch {number + 1}"
        these = bench.compare(name, contestants, work.tolerance, share=1 / len(batches))
        times = these if times is None else times.then(these)
        notes.append(distinct_pairs(logits_BGE, work.k))
    assert times is not None
    fastest = times.fastest(("layers", "merged", "dense"))
    ratio = sum(pairs for pairs, _ in notes) / sum(picks for _, picks in notes)
    note = f"E {num_experts}, over {fastest}; distinct pairs {ratio:.3f} of picks"
    return speedup(f"vs_best_trained_E{num_experts}", times, fastest, note=note)


def capacity(bench: Bench) -> list[Result]:
    """Dropless over padded buffers of fixed capacity; the gates like the same few experts."""
    work = replace(FOUR_GATES, device=bench.device)
    assert work.k is not None
    values = draw(work)
    logits_BGE = skewed_logits(work, SKEW)
    padded = {"capacity": Capacity(factor=1.25), "execution": "padded"}
    layer = our_layer(work, values, GivenLogits(logits_BGE, work.k), **padded)
    dropped = layer(values.x_BD).dropped
    assert dropped is not None
    # What is dropped is missing in the numbers too, so only the times can be compared.
    contestants = {
        "mmoe": given(work, values, logits_BGE),
        "padded": given(work, values, logits_BGE, **padded),
    }
    times = bench.clock.race("capacity", {name: c.step for name, c in contestants.items()})
    pairs, picks = distinct_pairs(logits_BGE, work.k)
    note = f"padded drops {int(dropped):,} of {picks:,} picks; dropless {pairs:,} pairs"
    return [speedup("vs_capacity_padded", times, "padded", note=note)]


GATE_RACES = (
    *(
        Race(
            {f"vs_t_layers_{name}": Target(layers), f"vs_merged_{name}": Target(merged)},
            partial(several_gates, name=name),
        )
        for name, layers, merged in (("independent", 1.25, 0.95), ("correlated", 2.5, 1.6))
    ),
    Race({"vs_best_trained": Target(1.2)}, trained),
    Race({"vs_capacity_padded": Target(1.2)}, capacity),
)


# What the automatic choice between dense and grouped execution costs where it errs

# Experts of a ranker, of the sparse layer, and small ones: D, widths
RANKER, AUTO_SPARSE, SMALL = (330, (256, 128)), (256, (512, 256)), (64, (64, 32))
# B, E, G, K, how much of their variance the gates share
RANKER_SETTINGS = (
    (64, 4, 2, 2, 0.0), (64, 8, 2, 2, 0.0), (64, 16, 4, 2, 0.0), (64, 64, 1, 2, 0.0),
    (64, 64, 4, 2, 0.8), (256, 4, 2, 1, 0.0), (256, 8, 1, 2, 0.0), (256, 8, 4, 2, 0.0),
    (256, 16, 2, 4, 0.8), (256, 32, 4, 2, 0.0), (256, 64, 8, 4, 0.0), (1024, 4, 1, 1, 0.0),
    (1024, 4, 2, 2, 0.0), (1024, 8, 2, 2, 0.0), (1024, 8, 2, 2, 0.8), (1024, 8, 4, 4, 0.0),
    (1024, 16, 1, 2, 0.0), (1024, 16, 4, 2, 0.0), (1024, 16, 4, 2, 0.8), (1024, 16, 8, 4, 0.0),
    (1024, 32, 4, 4, 0.0), (4096, 4, 1, 1, 0.0), (4096, 4, 1, 2, 0.0), (4096, 4, 4, 1, 0.0),
    (4096, 8, 1, 2, 0.0), (4096, 8, 2, 2, 0.0), (4096, 8, 4, 2, 0.0), (4096, 8, 4, 2, 0.8),
    (4096, 8, 8, 2, 0.0), (4096, 16, 2, 4, 0.0), (4096, 16, 4, 4, 0.0), (4096, 32, 4, 4, 0.8),
    (256, 4, 4, 3, 0.0), (1024, 4, 2, 4, 0.0), (4096, 4, 4, 4, 0.0), (4096, 8, 2, 8, 0.0),
)  # fmt: skip
SPARSE_SETTINGS = (
    (64, 8, 1, 2, 0.0), (64, 8, 4, 2, 0.0), (512, 4, 2, 2, 0.0), (512, 16, 4, 4, 0.0),
    (2048, 4, 1, 2, 0.0), (2048, 8, 2, 2, 0.0), (2048, 16, 4, 2, 0.0), (2048, 16, 8, 4, 0.8),
)  # fmt: skip
SMALL_SETTINGS = (
    (256, 4, 2, 1, 0.0), (1024, 8, 2, 2, 0.0), (1024, 16, 8, 2, 0.0), (4096, 4, 2, 1, 0.0),
    (4096, 8, 4, 2, 0.0), (4096, 16, 4, 2, 0.8), (1024, 4, 4, 4, 0.0), (4096, 8, 4, 6, 0.0),
)  # fmt: skip
SHARE = 0.15  # of the time of an ordinary race, for each setting


def auto_regret(bench: Bench) -> list[Result]:
    """The worst choice of all settings."""
    grid = ((RANKER, RANKER_SETTINGS), (AUTO_SPARSE, SPARSE_SETTINGS), (SMALL, SMALL_SETTINGS))
    choices = [_choice(bench, widths, one) for widths, settings in grid for one in settings]
    worst = max(choices, key=lambda choice: choice["regret"])
    right = sum(choice["regret"] == 1 for choice in choices)
    where = ", ".join(f"{name} {worst[name]}" for name in "BEGK")
    ms = worst["dense_ms"], worst["grouped_ms"]
    # The key is the worst; the range is that of all settings.
    spread = replace(Spread.of([c["regret"] for c in choices]), median=worst["regret"])
    note = f"{right} of {len(choices)} right; worst {where}: {worst['chosen']}"
    rounded = [{k: round(v, 3) if isinstance(v, float) else v for k, v in c.items()}
               for c in choices]  # fmt: skip
    ours_ms = ms[worst["chosen"] == "grouped"]
    return [Result("auto_regret", spread, ours_ms, min(ms), note, details=rounded)]


def _choice(
    bench: Bench, experts: tuple[int, tuple[int, ...]], setting: tuple[int, int, int, int, float]
) -> dict[str, Any]:
    """One setting: what was chosen, and what both cost."""
    B, E, G, K, shared = setting
    work = Workload(B=B, D=experts[0], hidden=experts[1], E=E, G=G, k=K, device=bench.device)
    values = draw(work)
    logits_BGE = correlated_logits(work, shared)
    contestants = {
        "dense": given(work, values, logits_BGE, execution="dense"),
        "grouped": given(work, values, logits_BGE, execution="grouped"),
    }
    name = f"auto: B {B}, E {E}, G {G}, K {K}"
    times = bench.compare(name, contestants, work.tolerance, share=SHARE)
    chosen = _chosen(work, values, logits_BGE)
    return {
        "B": B, "E": E, "G": G, "K": K, "experts": "-".join(map(str, work.widths)),
        # distinct pairs over all (sample, expert) pairs
        "pair_share": distinct_pairs(logits_BGE, K)[0] / (B * E),
        "chosen": chosen, "dense_ms": times.ms("dense"), "grouped_ms": times.ms("grouped"),
        "regret": times.median(chosen) / min(times.median(name) for name in contestants),
    }  # fmt: skip


def _chosen(work: Workload, values: Values, logits_BGE: Tensor) -> str:
    """Which of the two `auto` takes, seen by what it asks of its experts."""
    assert work.k is not None
    layer = our_layer(work, values, GivenLogits(logits_BGE, work.k))
    calls: list[str] = []
    experts: Any = layer.experts
    dense = experts.dense

    def spy(*arguments: Any) -> list[Tensor]:
        calls.append("dense")
        return dense(*arguments)

    experts.dense = spy
    layer(values.x_BD)
    return "dense" if calls else "grouped"


AUTO_RACES = (Race({"auto_regret": Target(1.15, at_most=True)}, auto_regret),)
RACES = (*DENSE_RACES, *SPARSE_RACES, *GATE_RACES, *AUTO_RACES)


def main() -> None:
    parser = options("mixture", keys_of(RACES), seconds=20.0, rounds=True, device=True)
    arguments = parser.parse_args()
    bench = Bench(clock_of(arguments), ProductRates(arguments.device))
    run(arguments, RACES, bench, rates=bench.rates, between=True, details=print_details)


if __name__ == "__main__":
    main()
