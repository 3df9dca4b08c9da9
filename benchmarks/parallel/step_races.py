"""Races of whole steps: two ranks beside one process, and twice the experts on twice the ranks."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.parallel.costs import account
from benchmarks.parallel.layer_races import RANKS, layer_growth
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Times
from benchmarks.train.bench import Bench, window
from benchmarks.train.processes import Contestant
from benchmarks.train.spec import Spec
from benchmarks.train.workloads import BATCH

LOOKED_AT = 20  # steps that parts and collectives are logged of
SPREAD, REPLICATED = "parallel.experts=spread", "parallel.experts=replicated"
NARROW = "parallel.wire_precision=bf16"
# Picks whose number does not grow with that of the experts. Loads are evened out by force: within
# some 100 steps 0.01 left one of two ranks with 1.3 times the pairs of the other, 1.0 within 2 %.
SPARSE = ("model.gate.kind=top_k", "model.gate.k=2", "model.gate.balance_loss=1.0")
EXPERTS = 8  # of one process
APART_ROUNDS = 6


def efficiency(bench: Bench, workload: str = "big", *, precision: str) -> list[Result]:
    """Two ranks of one thread beside one process of two, the same batches."""
    spread = two_ranks(bench, workload, precision, SPREAD)
    specs = {
        "one process": bench.spec("mmoe", workload, precision),
        "spread": spread,
        "replicated": two_ranks(bench, workload, precision, REPLICATED),
    }
    if precision == "fp32":
        specs["spread, bf16 wire"] = two_ranks(bench, workload, precision, SPREAD, NARROW)
    found: list[Mapping[str, Any]] = []
    times = bench.race(specs, after=partial(_look, found))
    key = f"two_rank_efficiency_{precision}"
    return [
        replace(_efficiency(key, times, "spread"), details=found),
        *(
            _efficiency(f"{key}_{name.replace(', ', '_').replace(' ', '_')}", times, name)
            for name in list(specs)[2:]
        ),
    ]


def weak_scaling(bench: Bench, workload: str = "big") -> list[Result]:
    """One rank with 8 experts, and two with 16 and twice the rows a step.

    Beside it, what this machine would let two ranks reach: one that works alone over one beside
    which another works, as large, that it never talks to.
    """
    one, other = (_one_rank(bench, workload) for _ in range(2))
    many = two_ranks(bench, workload, "fp32", SPREAD, *SPARSE)
    many = _changed(
        many, f"model.num_experts={RANKS * EXPERTS}", f"training.batch_size={RANKS * BATCH}"
    )
    apart: list[Times] = []
    times = bench.race(
        {"one": one, "other": other, "many": many}, after=partial(_beside_each_other, apart)
    )
    # Times are of as many rows; a step of many ranks has more of them
    spread = times.ratio("one", "many").times(1 / RANKS)
    step_ms = [times.median("many") * RANKS * 1e3, times.median("one") * 1e3]
    note = f"top-2 gates, fp32, {BATCH:,} rows a rank; ms of a step"
    result = Result(
        key="weak_scaling", spread=spread, ours_ms=step_ms[0], other_ms=step_ms[1], note=note
    )
    note = "one rank alone, and beside another that it does not talk to"
    ceiling = speedup("weak_scaling_apart", apart[0], "alone", "beside", note=note)
    return [result, ceiling, layer_growth(bench)]


def _one_rank(bench: Bench, workload: str) -> Spec:
    one = replace(bench.spec("mmoe", workload, "fp32"), threads=1)
    return _changed(one, *SPARSE, f"model.num_experts={EXPERTS}")


def _beside_each_other(found: list[Times], running: Mapping[str, Contestant]) -> None:
    """Windows of one rank alone, and of two at once."""
    seconds: dict[str, list[float]] = {"alone": [], "beside": []}
    pair = [running["one"], running["other"]]
    with ThreadPoolExecutor(len(pair)) as threads:
        for turn in range(APART_ROUNDS):
            seconds["alone"].append(window(pair[turn % 2], LOOKED_AT))
            both = threads.map(partial(window, steps=LOOKED_AT), pair)
            seconds["beside"].append(max(both))
    found.append(Times(seconds))


def two_ranks(bench: Bench, workload: str, precision: str, *overrides: str) -> Spec:
    """Ranks of one thread that train together."""
    spec = replace(bench.spec("mmoe", workload, precision), threads=1, ranks=RANKS)
    return _changed(spec, *overrides)


def _changed(spec: Spec, *overrides: str) -> Spec:
    """Later settings win, so that the user's come last."""
    return replace(spec, overrides=(*overrides, *spec.overrides))


def _efficiency(key: str, times: Times, name: str) -> Result:
    ours, one = (BATCH / times.median(who) for who in (name, "one process"))
    return Result(
        key=key,
        spread=times.ratio("one process", name),
        ours_ms=times.median(name) * 1e3,
        other_ms=times.median("one process") * 1e3,
        note=f"{ours:,.0f} against {one:,.0f} rows/s",
    )


def _look(found: list[Mapping[str, Any]], running: Mapping[str, Contestant]) -> None:
    """Where the time of one process and of two ranks goes."""
    one = running["one process"].ask("parts", steps=LOOKED_AT)["step_times"]
    parts = running["spread"].ask_all("parts", steps=LOOKED_AT)
    logs = running["spread"].ask_all("collectives", steps=LOOKED_AT)
    found.append(account(one, [answer["step_times"] for answer in parts], logs))


STEP_RACES: tuple[Race[Bench], ...] = (
    Race(("two_rank_efficiency_fp32",), partial(efficiency, precision="fp32")),
    Race(("two_rank_efficiency_bf16",), partial(efficiency, precision="bf16")),
    Race(("weak_scaling",), weak_scaling),
)
