"""Several gates over one pool: against a pass per gate, and against keeping the duplicates."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from benchmarks.mixture.bench import Bench, Race
from benchmarks.mixture.layers import GivenLogits, one_layer_per_gate, our_layer, ours
from benchmarks.mixture.race import Contestant
from benchmarks.mixture.workloads import (
    Values,
    Workload,
    correlated_logits,
    distinct_pairs,
    draw,
    skewed_logits,
)
from benchmarks.racing.races import NothingToMeasure
from benchmarks.racing.results import Result, speedup
from mmoe import ops
from mmoe.mixture import Capacity, DispatchPlan
from mmoe.ops.dispatch import permute

FOUR_GATES = Workload(B=4096, D=256, hidden=(512, 256), E=64, G=4, k=2)
SHARED = {"independent": 0.0, "correlated": 0.8}
TRAINED_EXPERTS = (16, 64)
SKEW = 0.7  # exponent of the picks' power law over the experts


class KeepDuplicates:
    """A dispatcher for which every pick is a pair of its own, whoever else picked the same."""

    def dispatch(self, sources: Sequence[Tensor], plan: DispatchPlan) -> tuple[Tensor, Tensor, Any]:
        """Gathers a row for every pick."""
        B, G, K = plan.experts_BGK.shape
        # As if every gate had its own samples: no two picks then name the same pair.
        apart = ops.route_plan(plan.experts_BGK.reshape(B * G, 1, K), plan.num_experts)
        slots_BGK = apart.slots_BGK.reshape(B, G, K)
        merged = ops.RoutePlan(apart.rows_P // G, apart.offsets_E1, slots_BGK)
        handle = (merged.slots_BGK, plan.weights_BGK)
        return permute(sources[0], merged), merged.offsets_E1, handle

    def combine(self, y_RO: Tensor, handle: Any) -> Tensor:
        """As without duplicates."""
        return ops.gated_combine(y_RO, *handle)


def given(work: Workload, values: Values, logits_BGE: Tensor, **settings) -> Contestant:
    """Our layer behind given logits."""
    assert work.k is not None
    return ours(work, values, gate=GivenLogits(logits_BGE, work.k), **settings)


def several_gates(bench: Bench, *, name: str) -> list[Result]:
    """Four gates at once, gate by gate, and at once without looking for duplicates."""
    work = replace(FOUR_GATES, device=bench.device)
    assert work.k is not None
    values = draw(work)
    logits_BGE = correlated_logits(work, SHARED[name])
    contestants = {
        "mmoe": given(work, values, logits_BGE),
        "layers": one_layer_per_gate(work, values, logits_BGE, work.k),
        "merged": given(work, values, logits_BGE, dispatcher=KeepDuplicates()),
    }
    times = bench.compare(f"{name} gates", contestants, work.tolerance)
    note = _pairs_note(logits_BGE, work.k)
    return [
        speedup(f"vs_t_layers_{name}", times, "layers", note=note),
        speedup(f"vs_merged_{name}", times, "merged", note=note),
    ]


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
    # Only here: training needs the whole library, the other races the operators alone.
    try:
        from benchmarks.mixture.trained import trained_logits
    except ModuleNotFoundError as error:
        raise NothingToMeasure(f"training needs what is not installed: {error}") from error

    batches = trained_logits(num_experts, work, bench.clock)
    for number, logits_BGE in enumerate(batches):
        contestants = {
            "mmoe": given(work, values, logits_BGE),
            "layers": one_layer_per_gate(work, values, logits_BGE, work.k),
            "merged": given(work, values, logits_BGE, dispatcher=KeepDuplicates()),
            "dense": given(work, values, logits_BGE, execution="dense"),
        }
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


def _pairs_note(logits_BGE: Tensor, k: int) -> str:
    pairs, picks = distinct_pairs(logits_BGE, k)
    return f"{pairs:,} distinct pairs of {picks:,}"


GATE_RACES = (
    *(
        Race((f"vs_t_layers_{name}", f"vs_merged_{name}"), partial(several_gates, name=name))
        for name in SHARED
    ),
    Race(("vs_best_trained",), trained),
    Race(("vs_capacity_padded",), capacity),
)
