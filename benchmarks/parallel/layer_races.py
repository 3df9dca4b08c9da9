"""Races of single layers, all contestants in one world of ranks: bytes, dispatches, growth."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.parallel.traffic import sums_of
from benchmarks.parallel.wire_cases import ROWS, wire_cases
from benchmarks.racing.races import Race
from benchmarks.racing.ranks import Ranks
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread, Times
from benchmarks.train.bench import Bench

RANKS = 2
# The layer of `vs_t_layers_*` in benchmarks.mixture; rows of each rank, the first for the key, with
# which both ranks together have the 4,096 of other keys
FOUR_GATES = {"D": 256, "hidden": (512, 256), "E": 64, "G": 4, "k": 2}
FOUR_GATES_ROWS = (2048, 4096, 1024)
CORRELATED = 0.8
GROWING = {"D": 330, "hidden": (256, 128), "E": 8, "G": 2, "k": 2, "B": 4096}
# Seconds beside those of the race itself: checks, warm-up, one round that has begun
MARGIN = 240.0


def wire_bytes(bench: Bench, rows: int = ROWS) -> list[Result]:
    """Bytes of a step over the fewest that there can be; the key is the worst case's."""
    found = []
    with layer_ranks() as ranks:
        for case in wire_cases(rows):
            answers = ranks.ask_all("bytes", **asdict(case))
            found.append({"case": case.name, "wire": case.wire, **_sums(answers)})
    ratios = Spread.of([row["over_bound"] for row in found])
    worst = max(found, key=lambda row: row["over_bound"])
    spread = Spread(worst["over_bound"], ratios.low, ratios.high, ratios.count)
    note = f"worst: {worst['case']}, {worst['wire']}"
    return [Result(key="wire_bytes_over_bound", spread=spread, note=note, details=found, digits=4)]


def t_dispatches(bench: Bench) -> list[Result]:
    """One dispatch for four gates over four dispatches."""
    results = []
    for number, rows in enumerate(FOUR_GATES_ROWS):
        sizes = {**FOUR_GATES, "B": rows, "shared": CORRELATED}
        times = _race(bench, "dispatches", bench.seconds / len(FOUR_GATES_ROWS), sizes)
        key = "vs_t_dispatches" + ("" if number == 0 else f"_{rows}_rows")
        note = f"{rows:,} rows a rank, 4 correlated gates, top-2 of 64"
        results.append(speedup(key, times, "each", "one", note=note))
    return results


def layer_growth(bench: Bench) -> Result:
    """Weak scaling of a layer alone, its picks given."""
    times = _race(bench, "growth", bench.seconds / 2, GROWING)
    return speedup("weak_scaling_layer", times, "one", "many", note="the layer alone, even loads")


@contextmanager
def layer_ranks() -> Iterator[Ranks]:
    """Two ranks that run layers."""
    ranks = Ranks("layers over ranks", "benchmarks.parallel.layer_rank", "", ranks=RANKS)
    try:
        ranks.wait_until_ready()
        yield ranks
    finally:
        ranks.close()


def _race(bench: Bench, job: str, seconds: float, sizes: dict[str, Any]) -> Times:
    """A race in a world of its own; the ranks agree on the times."""
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
    Race(("wire_bytes_over_bound",), wire_bytes),
    Race(("vs_t_dispatches",), t_dispatches),
)
