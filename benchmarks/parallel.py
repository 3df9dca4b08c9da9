"""Races ranks against one process, prints tables and, last, one JSON line."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.racing.harness import (
    Race,
    Result,
    Spread,
    Target,
    Times,
    new_table,
    print_details,
    show,
    speedup,
)
from benchmarks.racing.ranks import Ranks
from benchmarks.racing.spread import sums_of
from benchmarks.train.races import Bench, Contestant, print_operators, run_program, window
from benchmarks.train.workloads import BATCH, Spec
from mmoe.train.profiling import StepTimes

# What ranks cost: parts of a step beside those of one process, and what was waited for

# Operators that multiply matrices; what else experts take is planning, packing, mixing, waiting
PRODUCTS = re.compile(r"_mm_|mm$|linear")


def account(
    one: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], logs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Milliseconds a step."""
    times = [StepTimes.of(found) for found in (one, *ranks)]
    rows = [
        {"part": part.part, "one": part.both, "ranks": [t.parts[number].both for t in times[1:]]}
        for number, part in enumerate(times[0].parts)
    ]
    return {
        "parts": rows,
        "products": [_products(found) for found in (one, *ranks)],
        "collectives": collective_costs(logs),
        "step_ms": [log["step_ms"] for log in logs],
        "operators": list(ranks[0]["operators"]),
    }


def collective_costs(logs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a rank stands still for, by owner: means over ranks and steps.

    `waiting` is the time until the last rank was there as well; `on the wire` what it took from
    then on; what went on behind other work is neither.
    """
    latest: dict[str, float] = defaultdict(float)
    for log in logs:
        for found in log["found"]:
            latest[found["key"]] = max(latest[found["key"]], found["issued"])
    shares = 1 / sum(log["steps"] for log in logs)
    total: dict[str, dict[str, Any]] = {}
    for log in logs:
        for found in log["found"]:
            stood = found["ended"] - found["stood"]
            waited = min(max(latest[found["key"]] - found["stood"], 0.0), stood)
            row = total.setdefault(
                found["owner"],
                {"owner": found["owner"], "calls": 0.0, "mb": 0.0, "waiting": 0.0, "wire": 0.0},
            )
            row["calls"] += shares
            row["mb"] += found["bytes"] * shares / 1e6
            row["waiting"] += waited * 1e3 * shares
            row["wire"] += (stood - waited) * 1e3 * shares
    return sorted(total.values(), key=lambda row: -row["waiting"] - row["wire"])


def _products(times: Mapping[str, Any]) -> float:
    return sum(op["ms"] for op in times["operators"] if PRODUCTS.search(op["name"]))


# What is sent for a layer: the cases

ROWS = 1024  # of each rank
DENSE = {"E": 8, "D": 330, "hidden": (128,)}  # of `big`; hidden layers send nothing
TOP_2 = {"E": 64, "D": 256, "hidden": (256,), "k": 2}


def wire_cases() -> list[dict[str, Any]]:
    cases = []
    for wire in ("fp32", "bf16"):
        for gates in (2, 8):
            sizes = {**DENSE, "G": gates, "B": ROWS}
            case = {"sizes": sizes, "shared": 0.0, "wire": wire}
            cases.append({"name": f"{gates} gates, all of 8", **case})
        for gates, shared in ((1, 0.0), (4, 0.0), (4, 0.8), (8, 0.0), (8, 0.8)):
            sizes = {**TOP_2, "G": gates, "B": ROWS}
            name = f"{gates} gate{'s' * (gates > 1)}, top-2 of 64{', correlated' * bool(shared)}"
            cases.append({"name": name, "sizes": sizes, "shared": shared, "wire": wire})
    return cases


# Races of single layers, all contestants in one world of ranks: bytes, dispatches, growth

RANKS = 2
# The layer of `vs_t_layers_*` in benchmarks.mixture; rows of each rank, the first for the key, with
# which both ranks together have the 4,096 of other keys
FOUR_GATES = {"D": 256, "hidden": (512, 256), "E": 64, "G": 4, "k": 2}
FOUR_GATES_ROWS = (2048, 4096, 1024)
CORRELATED = 0.8
GROWING = {"D": 330, "hidden": (256, 128), "E": 8, "G": 2, "k": 2, "B": 4096}
# Seconds beside those of the race itself: checks, warm-up, one round that has begun
MARGIN = 240.0


def wire_bytes(bench: Bench) -> list[Result]:
    """Bytes of a step over the fewest that there can be; the key is the worst case's."""
    found = []
    with layer_ranks() as ranks:
        for case in wire_cases():
            name = case.pop("name")
            answers = ranks.ask_all("bytes", **case)
            found.append({"case": name, "wire": case["wire"], **_sums(answers)})
    ratios = Spread.of([row["over_bound"] for row in found])
    worst = max(found, key=lambda row: row["over_bound"])
    spread = Spread(worst["over_bound"], ratios.low, ratios.high, ratios.count)
    note = f"worst: {worst['case']}, {worst['wire']}"
    return [Result("wire_bytes_over_bound", spread, note=note, details=found, digits=4)]


def t_dispatches(bench: Bench) -> list[Result]:
    results = []
    for number, rows in enumerate(FOUR_GATES_ROWS):
        sizes = {**FOUR_GATES, "B": rows, "shared": CORRELATED}
        times = _race(bench, "dispatches", bench.seconds / len(FOUR_GATES_ROWS), sizes)
        key = "vs_t_dispatches" + ("" if number == 0 else f"_{rows}_rows")
        note = f"{rows:,} rows a rank, 4 correlated gates, top-2 of 64"
        results.append(speedup(key, times, "each", "one", note=note))
    return results


def layer_growth(bench: Bench) -> Result:
    times = _race(bench, "growth", bench.seconds / 2, GROWING)
    return speedup("weak_scaling_layer", times, "one", "many", note="the layer alone, even loads")


def layer_ranks() -> Ranks:
    return Ranks("layers over ranks", "benchmarks.racing.spread", "", ranks=RANKS)


def _race(bench: Bench, job: str, seconds: float, sizes: dict[str, Any]) -> Times:
    with layer_ranks() as ranks:
        answer = ranks.ask_all(job, within=seconds + MARGIN, seconds=seconds, **sizes)[0]
    bench.say(f"  {job}: {len(next(iter(answer['seconds'].values())))} rounds")
    return Times(answer["seconds"])


def _sums(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all ranks, see `sums_of`."""
    total = sums_of("bytes_sent", answers)
    others = ("per_gate", "per_pick")
    times = {key: sum(a[key] for a in answers) / total["counted"] for key in others}
    links = [link for answer in answers for link in answer["links"]]
    counts = {key: sum(link[key] for link in links) for key in links[0]}
    return {"over_bound": total["counted"] / total["bound"], **total, **times, **counts}


LAYER_RACES: tuple[Race[Bench], ...] = (
    Race({"wire_bytes_over_bound": Target(1.03, at_most=True)}, wire_bytes),
    Race({"vs_t_dispatches": Target(2.5)}, t_dispatches),
)


# Races of whole steps: two ranks beside one process, and twice the experts on twice the ranks

LOOKED_AT = 20  # steps that parts and collectives are logged of
SPREAD, REPLICATED = "parallel.experts=spread", "parallel.experts=replicated"
NARROW = "parallel.wire_precision=bf16"
# Picks whose number does not grow with that of the experts. Loads are evened out by force: within
# some 100 steps 0.01 left one of two ranks with 1.3 times the pairs of the other, 1.0 within 2 %.
SPARSE = ("model.gate.kind=top_k", "model.gate.k=2", "model.gate.balance_loss=1.0")
EXPERTS = 8  # of one process
APART_ROUNDS = 6


def efficiency(bench: Bench, *, precision: str) -> list[Result]:
    spread = two_ranks(bench, precision, SPREAD)
    specs = {
        "one process": bench.spec("mmoe", "big", precision),
        "spread": spread,
        "replicated": two_ranks(bench, precision, REPLICATED),
    }
    if precision == "fp32":
        specs["spread, bf16 wire"] = two_ranks(bench, precision, SPREAD, NARROW)
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


def weak_scaling(bench: Bench) -> list[Result]:
    """One rank with 8 experts, and two with 16 and twice the rows a step.

    Beside it, what this machine would let two ranks reach: one that works alone over one beside
    which another works, as large, that it never talks to.
    """
    one, other = (_one_rank(bench) for _ in range(2))
    many = two_ranks(bench, "fp32", SPREAD, *SPARSE)
    many = _changed(
        many, f"model.num_experts={RANKS * EXPERTS}", f"training.batch_size={RANKS * BATCH}"
    )
    apart: list[Times] = []
    times = bench.race(
        {"one": one, "other": other, "many": many}, after=partial(_beside_each_other, apart)
    )
    # Times are of as many rows; a step of many ranks has more of them
    spread = times.ratio("one", "many").times(1 / RANKS)
    step_ms = [times.median("many") * RANKS * 1e3, times.ms("one")]
    note = f"top-2 gates, fp32, {BATCH:,} rows a rank; ms of a step"
    result = Result("weak_scaling", spread, step_ms[0], step_ms[1], note)
    note = "one rank alone, and beside another that it does not talk to"
    ceiling = speedup("weak_scaling_apart", apart[0], "alone", "beside", note=note)
    return [result, ceiling, layer_growth(bench)]


def _one_rank(bench: Bench) -> Spec:
    one = replace(bench.spec("mmoe", "big", "fp32"), threads=1)
    return _changed(one, *SPARSE, f"model.num_experts={EXPERTS}")


def _beside_each_other(found: list[Times], running: Mapping[str, Contestant]) -> None:
    seconds: dict[str, list[float]] = {"alone": [], "beside": []}
    pair = [running["one"], running["other"]]
    with ThreadPoolExecutor(len(pair)) as threads:
        for turn in range(APART_ROUNDS):
            seconds["alone"].append(window(pair[turn % 2], LOOKED_AT))
            both = threads.map(partial(window, steps=LOOKED_AT), pair)
            seconds["beside"].append(max(both))
    found.append(Times(seconds))


def two_ranks(bench: Bench, precision: str, *overrides: str) -> Spec:
    spec = replace(bench.spec("mmoe", "big", precision), threads=1, ranks=RANKS)
    return _changed(spec, *overrides)


def _changed(spec: Spec, *overrides: str) -> Spec:
    """Later settings win, so that the user's come last."""
    return replace(spec, overrides=(*overrides, *spec.overrides))


def _efficiency(key: str, times: Times, name: str) -> Result:
    ours, one = (BATCH / times.median(who) for who in (name, "one process"))
    return Result(
        key,
        times.ratio("one process", name),
        times.ms(name),
        times.ms("one process"),
        f"{ours:,.0f} against {one:,.0f} rows/s",
    )


def _look(found: list[Mapping[str, Any]], running: Mapping[str, Contestant]) -> None:
    one = running["one process"].ask("parts", steps=LOOKED_AT)["step_times"]
    parts = running["spread"].ask_all("parts", steps=LOOKED_AT)
    logs = running["spread"].ask_all("collectives", steps=LOOKED_AT)
    found.append(account(one, [answer["step_times"] for answer in parts], logs))


STEP_RACES: tuple[Race[Bench], ...] = (
    Race({"two_rank_efficiency_fp32": Target(0.85)}, partial(efficiency, precision="fp32")),
    Race({"two_rank_efficiency_bf16": Target(0.85)}, partial(efficiency, precision="bf16")),
    Race({"weak_scaling": Target(0.80)}, weak_scaling),
)


# Prints what was sent, and where the time of a step over ranks goes


def print_costs(results: Sequence[Result]) -> None:
    for result in results:
        for costs in result.details:
            if "collectives" in costs:
                _print_parts(result.key, costs)
                _print_collectives(result.key, costs)
                print_operators(f"A step, {result.key}: operators of rank 0", costs["operators"])


def _print_parts(key: str, costs: Mapping[str, Any]) -> None:
    numbers = range(len(costs["parts"][0]["ranks"]))
    table = new_table(("part", "one process", *(f"rank {rank}" for rank in numbers), "more"))

    def add(name: str, one: float, ranks: Sequence[float]) -> None:
        more = sum(ranks) / len(ranks) - one
        table.add_row(name, *(f"{ms:.2f}" for ms in (one, *ranks)), f"{more:+.2f}")

    for row in costs["parts"]:
        add(row["part"], row["one"], row["ranks"])
    table.add_section()
    rows = costs["parts"]
    add("step", sum(r["one"] for r in rows), [sum(r["ranks"][n] for r in rows) for n in numbers])
    add("products", costs["products"][0], costs["products"][1:])
    show(
        f"A step, {key}, ms while it is recorded; collectives count where they were waited for",
        table,
    )


def _print_collectives(key: str, costs: Mapping[str, Any]) -> None:
    table = new_table(("collectives", "calls", "MB", "waiting", "on the wire", "of the step"))
    whole = sum(costs["step_ms"]) / len(costs["step_ms"])
    for row in costs["collectives"]:
        share = (row["waiting"] + row["wire"]) / whole
        table.add_row(
            row["owner"],
            *(f"{row[k]:.{digits}f}" for k, digits in (("calls", 0), ("mb", 2))),
            *(f"{row[k]:.2f}" for k in ("waiting", "wire")),
            f"{share:.1%}",
        )
    show(f"A step, {key}: what a rank stands still for, ms (mean of ranks and steps)", table)


def _details(results: Sequence[Result]) -> None:
    print_details([result for result in results if result.key == "wire_bytes_over_bound"])
    print_costs(results)


if __name__ == "__main__":
    run_program(
        "parallel",
        (*LAYER_RACES, *STEP_RACES),
        "Paired ratios (ms of a whole step: of 4,096 rows): median and 10–90 % range",
        _details,
        threads=2,  # ranks have one each
        changes="every config",
    )
