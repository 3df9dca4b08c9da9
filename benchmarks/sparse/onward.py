"""What a dense run becomes: a sparse pool beside its experts, or fewer experts when it scores."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.racing.harness import Race, Result, Spread, Target
from benchmarks.sparse.contest import CONTESTANTS, TEST_ROWS, Log
from benchmarks.sparse.quality import Bench, with_low
from benchmarks.sparse.worlds import World, draw_world
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train.warm_start.earlier import WarmStart

_DENSE = 8  # experts of the run that is upcycled
_NEW = 64  # that come beside them
_STILL = {"kind": "adam", "learning_rate": 1e-30}


def _dense(experts: int = _DENSE) -> dict[str, Any]:
    return CONTESTANTS["dense MMoE"].model(experts)


def _upcycled() -> dict[str, Any]:
    gate = {"kind": "top_k", "select": "joint", "shared_k": 4, "private_k": 0, "always": _DENSE}
    return {**_dense(_DENSE + _NEW), "gate": {**gate, "shared_logits": True}}


class _Story:
    """One world's rows in the order in which they come; all models are tested on the same."""

    def __init__(self, name: str, seed: int, rows: int, tasks: int = 4) -> None:
        self.world = draw_world(name, seed, rows + TEST_ROWS, tasks)
        self.rows = rows

    def part(self, first: int, last: int) -> Log:
        test = slice(self.rows, None)
        log = pa.concat_tables([self.world.log.slice(first, last - first), self.world.log[test]])
        truth = self.world.truth_NT
        return Log.of(World(log, np.concatenate([truth[first:last], truth[test]])))


def upcycling(world: str, bench: Bench) -> tuple[list[float], float, list[Any]]:
    """How much less an upcycled run loses than the dense one that trains on for as long.

    Beside it how far the first scores of the upcycled one are from the dense one's, at most.
    """
    gains, details, error = [], [], 0.0
    half = bench.rows // 2
    for seed in range(bench.seeds):
        story = _Story(world, seed, 3 * half)
        with tempfile.TemporaryDirectory(prefix="mmoe-sparse-") as folder:
            run = Path(folder) / "dense"
            first = story.part(0, half)
            first.train(first.config(_dense(), seed), run)
            if not seed:
                error = _start_error(story.part(half, half + 4096), run, Path(folder))
            warm = WarmStart(run, "copy")
            more = story.part(half, 2 * half)
            upcycled = more.train(more.config(_upcycled(), seed), warm_start=warm)
            pace = more.train(more.config(_dense(), seed), warm_start=warm)
            rows = round(half * min(upcycled.seconds / pace.seconds, 2.0))
            longer = story.part(half, half + rows)
            dense = longer.train(longer.config(_dense(), seed), warm_start=warm)
        gains.append(dense.regret - upcycled.regret)
        for name, each in (("dense, as long", dense), ("upcycled", upcycled)):
            details.append({"world": world, "seed": seed, "model": name, **each.shown()})
            bench.clock.say(f"  {details[-1]}")
    return gains, error, details


def _start_error(log: Log, run: Path, folder: Path) -> float:
    """The largest difference of scores of test rows, where no step changes anything."""
    found: list[np.ndarray] = []
    for name, model in (("still", _dense()), ("more", _upcycled())):
        still = log.config(model, 0, optimizer=_STILL, embedding_optimizer={"learning_rate": 1e-30})
        log.train(still, folder / name, WarmStart(run, "copy"))
        found.append(_scorer(folder / name, log)())
    return float(np.abs(found[0] - found[1]).max())


def upcycled_segments(bench: Bench) -> list[Result]:
    gains, error, details = upcycling("segments", bench)
    note = "largest difference of probabilities before the first step"
    start = Result("upcycle_start_error", Spread.single(error), note=note, digits=9)
    gain = "log-loss, dense trained on for as long less upcycled"
    return [start, *with_low("upcycle_gain_segments", gains, gain, details)]


def upcycled_smooth(bench: Bench) -> list[Result]:
    gains, _, details = upcycling("smooth", bench)
    regret = Spread.of_mean([-gain for gain in gains])
    return [Result("upcycle_regret_smooth", regret, details=details, digits=5)]


# Trained dense, scored sparse

_EXPERTS, _BUDGET = 16, 4  # of the dense run, and of a row when it scores


def scored_sparse(bench: Bench) -> list[Result]:
    """A dense run whose gates learn in the last fifth of its rows to do with few experts a row."""
    most = bench.rows // 2
    story = _Story("segments", 0, most)
    cut = round(0.8 * most)
    few = {"kind": "top_k", "select": "joint", "shared_k": _BUDGET, "private_k": 0}
    few |= {"shared_logits": True}
    with tempfile.TemporaryDirectory(prefix="mmoe-sparse-") as name:
        folder = Path(name)
        first, last = story.part(0, cut), story.part(cut, most)
        first.train(first.config(_dense(_EXPERTS), 0), folder / "dense")
        warm = WarmStart(folder / "dense")
        dense = last.train(last.config(_dense(_EXPERTS), 0), folder / "on", warm)
        tuned = {**_dense(_EXPERTS), "gate": few}
        sparse = last.train(last.config(tuned, 0), folder / "few", warm)
        calls = {way: _scorer(folder / way, last) for way in ("on", "few")}
        times = bench.clock.race("score_sparse", calls)
    lost = sparse.regret - dense.regret
    details = [{"model": n, **r.shown()} for n, r in (("dense", dense), ("few", sparse))]
    note = f"{_BUDGET} of {_EXPERTS} experts a row, log-loss {lost:+.5f}"
    speed = times.ratio("on", "few")
    return [
        Result("score_sparse_speed", speed, times.ms("few"), times.ms("on"), note, details=details),
        Result("score_sparse_loss", Spread.single(lost), digits=5),
    ]


def _scorer(run: Path, log: Log) -> Callable[[], np.ndarray]:
    predictor, encoder, config = load_predictor(RunDirectory.open(run))
    rows = BatchSource.of_table(log.splits.test, encoder, "test", config)
    return lambda: predictor.predict(rows)


RACES: tuple[Race[Bench], ...] = (
    Race(
        {
            "upcycle_start_error": Target(1e-6, at_most=True),
            "upcycle_gain_segments": Target(0.0),
            "upcycle_gain_segments_low": Target(0.0),
        },
        upcycled_segments,
    ),
    Race({"upcycle_regret_smooth": Target(0.0003, at_most=True)}, upcycled_smooth),
    Race(
        {"score_sparse_speed": Target(1.5), "score_sparse_loss": Target(0.0002, at_most=True)},
        scored_sparse,
    ),
)
