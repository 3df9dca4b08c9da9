"""Who loses least at equal time, world by world."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.racing.harness import Clock, Race, Result, Spread, Target
from benchmarks.sparse.contest import CONTESTANTS, REFERENCE, TEST_ROWS, Log, Reached, sizes_within
from benchmarks.sparse.worlds import draw_world

_SLOWER = 1.1  # a contestant whose steps took longer than the time, and so much, is out


@dataclass(frozen=True)
class Bench:
    """What every race gets."""

    clock: Clock
    seeds: int
    rows: int  # of a log that is trained on
    pictures: Path | None  # where curves over time are drawn


# Dense against sparse, at equal time


def _draw(bench: Bench, world: str, tasks: int, seed: int, rows: int | None = None) -> Log:
    return Log.of(draw_world(world, seed, (rows or bench.rows) + TEST_ROWS, tasks))


def contest(bench: Bench, world: str, tasks: int, seeds: int) -> tuple[list[float], list[Any]]:
    """How much less the best sparse model loses than the best dense one, for each seed.

    Which ones are the best is found on a log of its own, of a quarter of the rows (of all of them
    where there are no seeds), so that no seed both chooses and judges.
    """
    rows = bench.rows // 4 if seeds else bench.rows
    log = _draw(bench, world, tasks, seed=1000, rows=rows)
    sizes = sizes_within(log, bench.clock.say)
    details: list[Any] = []

    def train(name: str, log: Log, seed: int) -> Reached:
        found = log.train(log.config(CONTESTANTS[name].model(sizes[name]), seed))
        about = {"rows": len(log.splits.train), "seed": seed, "model": name, "size": sizes[name]}
        details.append({**about, **found.shown()})
        bench.clock.say(f"  {world}, {tasks} tasks: {details[-1]}")
        return found

    reached = {name: train(name, log, 1000) for name in CONTESTANTS}
    curves = dict(reached)
    best = [_best(reached, is_sparse=sparse) for sparse in (False, True)]
    gains = []
    for seed in range(seeds):
        log = _draw(bench, world, tasks, seed)
        dense, sparse = (train(name, log, seed) for name in best)
        curves |= {} if seed else dict(zip(best, (dense, sparse), strict=True))
        gains.append(dense.regret - sparse.regret)
    _draw_curves(bench, f"{world}, {tasks} tasks", curves)
    return gains or [reached[best[0]].regret - reached[best[1]].regret], details


def _best(reached: Mapping[str, Reached], *, is_sparse: bool) -> str:
    """The one that lost least within the time, which that of the reference is."""
    limit = _SLOWER * reached[REFERENCE].seconds
    mine = [name for name, one in CONTESTANTS.items() if one.is_sparse == is_sparse]
    within = [name for name in mine if reached[name].seconds <= limit]
    return min(within or mine, key=lambda name: reached[name].regret)


def _draw_curves(bench: Bench, title: str, reached: Mapping[str, Reached]) -> None:
    # A point is of ten steps or more, and the first one is far above the others
    longest = max(len(each.curve) for each in reached.values())
    if bench.pictures is None or longest < 3:
        return
    bench.pictures.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for name, each in reached.items():
        points = each.curve[1:]
        dashed = "-" if CONTESTANTS[name].is_sparse else "--"
        axes.plot([s for s, _ in points], [loss for _, loss in points], dashed, label=name)
    axes.set(title=title, xlabel="seconds", ylabel="log-loss before learning, mean of the tasks")
    axes.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    name = title.replace(", ", "_").replace(" ", "_")
    figure.savefig(bench.pictures / f"sparse_{name}.png", dpi=110, bbox_inches="tight")
    plt.close(figure)


def gains_of(key: str, world: str, tasks: int) -> Callable[[Bench], list[Result]]:
    def run(bench: Bench) -> list[Result]:
        gains, details = contest(bench, world, tasks, bench.seeds)
        return with_low(key, gains, "log-loss, best dense less best sparse", details)

    return run


def with_low(key: str, gains: Sequence[float], note: str, details: Sequence[Any]) -> list[Result]:
    spread = Spread.of_mean(gains)
    low = Spread(spread.low, spread.low, spread.low, spread.count)
    return [
        Result(key, spread, note=note, details=details, digits=5),
        Result(f"{key}_low", low, note="lower end, 95 %", digits=5),
    ]


def smooth(bench: Bench) -> list[Result]:
    gains, details = contest(bench, "smooth", 4, bench.seeds)
    regret = Spread.of_mean([-gain for gain in gains])
    note = "log-loss, best sparse less best dense"
    return [Result("smooth_regret", regret, note=note, details=details, digits=5)]


def few_tasks(bench: Bench) -> list[Result]:
    """What a smaller number of tasks changes, on one log of half the rows."""
    results = []
    for tasks in (4, 12):
        gains, details = contest(replace(bench, rows=bench.rows // 2), "conflict", tasks, 0)
        spread = Spread.single(gains[0])
        results.append(Result(f"conflict_gain_{tasks}", spread, details=details, digits=5))
    return results


RACES: tuple[Race[Bench], ...] = (
    Race({"smooth_regret": Target(0.0005, at_most=True)}, smooth),
    Race(
        {"segments_gain": Target(0.002), "segments_gain_low": Target(0.0)},
        gains_of("segments_gain", "segments", 4),
    ),
    Race(
        {"conflict_gain_32": Target(0.002), "conflict_gain_32_low": Target(0.0)},
        gains_of("conflict_gain_32", "conflict", 32),
    ),
    Race({"conflict_gain_4": None, "conflict_gain_12": None}, few_tasks),
)
