"""Inside a rank: layers that take turns, in one mode after another."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.mixture.race import check_equal
from benchmarks.network.grid import Setting
from benchmarks.network.layers import How, RankLayer
from benchmarks.racing.times import rotated

# Contestants that take so many times as long as the first are timed a few times only
HOPELESS, FEW = 3.0, 2
FEWEST, MOST = 5, 40


def race_modes(
    *, setting: Mapping[str, Any], hows: Mapping[str, Mapping[str, Any]], seconds: float, free: bool
) -> dict[str, Any]:
    """Times one layer in several modes that take turns.

    Args:
        setting: Of the layer.
        hows: By the names of contestants.
        seconds: Of the race.
        free: Whether the experts cost nothing.

    Returns:
        Seconds of every contestant, the same on all ranks.

    Raises:
        ValueError: Two modes give different numbers.
    """
    chosen = Setting.of(setting)
    layer = RankLayer(chosen, free=free)
    contestants = {name: layer.as_contestant(How(**how)) for name, how in hows.items()}
    if not free:
        check_equal(chosen.name, contestants, chosen.work.tolerance)
    return {"seconds": race({name: c.step for name, c in contestants.items()}, seconds)}


def race(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Seconds of calls that take turns; all ranks agree on them, and on how many there are."""
    for call in calls.values():
        timed(call)
    first = {name: timed(call) for name, call in calls.items()}
    fastest = min(first.values())
    hopeful = [name for name, took in first.items() if took < HOPELESS * fastest]
    rounds = int(seconds / max(sum(first[name] for name in hopeful), 1e-6))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(max(FEWEST, min(MOST, rounds))):
        names = list(calls) if turn < FEW else hopeful
        for name in rotated(names, turn):
            found[name].append(timed(calls[name]))
    return found


def timed(call: Callable[[], object]) -> float:
    """Seconds until the last rank is done, the same on every rank; all begin together."""
    dist.barrier()
    started = time.perf_counter()
    call()
    took = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def median_ms(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Of every contestant."""
    return {name: statistics.median(took) * 1e3 for name, took in seconds.items()}
