"""Inside a rank: layers that take turns, in one mode after another."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.mixture.race import check_equal
from benchmarks.network.layers import Choosing, How, RankLayer
from benchmarks.racing.times import rotated
from mmoe.parallel import AdaptiveMode

# Contestants that take so many times as long as the fastest are timed once
HOPELESS = 3.0
FEWEST, MOST = 5, 40
# More calls than any race has: what was chosen stays
NEVER_AGAIN = 2**40


def race_modes(
    *,
    layer: Mapping[str, Any],
    hows: Mapping[str, Mapping[str, Any]],
    seconds: float,
    drop_slow: bool = False,
) -> dict[str, Any]:
    """Times one layer in several modes that take turns.

    Args:
        layer: Of `RankLayer`.
        hows: By the names of contestants; `auto: true` chooses by itself, before the race.
        seconds: Of the race.
        drop_slow: Whether those that are slow beyond hope run once only.

    Returns:
        Seconds of every contestant, the same on all ranks; what was chosen, and why.

    Raises:
        ValueError: Two modes give different numbers.
    """
    raced = RankLayer.of(layer)
    adaptive = AdaptiveMode(first=(0,), every=NEVER_AGAIN)
    contestants = {}
    for name, how in hows.items():
        automatic = bool(how.get("auto"))
        mode = Choosing(adaptive) if automatic else How(**how)
        contestants[name] = raced.as_contestant(mode)
        while automatic and not adaptive.history:
            timed(contestants[name].step)
    if not raced.free:
        check_equal(raced.setting.name, contestants, raced.work.tolerance)
    took = race({name: c.step for name, c in contestants.items()}, seconds, drop_slow)
    chosen = [{"mode": How.of(c.mode).as_json(), "why": c.why} for c in adaptive.history]
    return {"seconds": took, "chosen": chosen}


def race(
    calls: Mapping[str, Callable[[], object]], seconds: float, drop_slow: bool
) -> dict[str, list[float]]:
    """Seconds of calls that take turns; all ranks agree on them, and on how many there are."""
    first = {name: timed(call) for name, call in calls.items()}
    slowest = HOPELESS * min(first.values()) if drop_slow else float("inf")
    hopeful = [name for name, took in first.items() if took < slowest]
    rounds = int(seconds / max(sum(first[name] for name in hopeful), 1e-6))
    found = {name: [] if name in hopeful else [took] for name, took in first.items()}
    for turn in range(max(FEWEST, min(MOST, rounds))):
        for name in rotated(hopeful, turn):
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
