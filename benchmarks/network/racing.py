"""Inside a rank: layers that take turns, in one mode after another."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.mixture.race import check_equal
from benchmarks.network.layers import Choosing, How, RankLayer
from benchmarks.racing.clock import time_on_all_ranks
from benchmarks.racing.times import rotated
from mmoe.parallel import AdaptiveMode, better_placement

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
            time_on_all_ranks(contestants[name].step)
    if not raced.free:
        check_equal(raced.setting.name, contestants, raced.work.tolerance)
    took = race({name: c.step for name, c in contestants.items()}, seconds, drop_slow)
    chosen = [{"mode": How.of(c.mode).as_json(), "why": c.why} for c in adaptive.history]
    return {"seconds": took, "chosen": chosen}


def race_placements(*, layer: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Times a layer whose experts lie evenly beside one in which they were placed by their loads.

    Args:
        layer: Of `RankLayer`.
        seconds: Of the race.

    Returns:
        Seconds of both; how uneven the loads of ranks were, and are.

    Raises:
        ValueError: The layers give different numbers, or no better placement was found.
    """
    even = RankLayer.of(layer)
    picks = even.logits_BGE.topk(even.setting.k, dim=-1).indices
    loads_E = torch.bincount(picks.flatten(), minlength=even.setting.experts)
    dist.all_reduce(loads_E)
    better = better_placement(even.placement, loads_E.tolist())
    if better is None:
        raise ValueError(f"placement: expected one better than {even.placement}, got none")
    placed = RankLayer.of({**layer, "placement": better.placement})
    calls = {name: of.as_contestant(How()) for name, of in (("even", even), ("placed", placed))}
    outs = [call.run()[0].detach() for call in calls.values()]
    torch.testing.assert_close(*outs, rtol=even.work.tolerance, atol=even.work.tolerance)
    took = race({name: call.step for name, call in calls.items()}, seconds, drop_slow=False)
    return {"seconds": took, "before": better.before, "after": better.after}


def race(
    calls: Mapping[str, Callable[[], object]], seconds: float, drop_slow: bool
) -> dict[str, list[float]]:
    """Seconds of calls that take turns; all ranks agree on them, and on how many there are."""
    first = {name: time_on_all_ranks(call) for name, call in calls.items()}
    slowest = HOPELESS * min(first.values()) if drop_slow else float("inf")
    hopeful = [name for name, took in first.items() if took < slowest]
    rounds = int(seconds / max(sum(first[name] for name in hopeful), 1e-6))
    found = {name: [] if name in hopeful else [took] for name, took in first.items()}
    for turn in range(max(FEWEST, min(MOST, rounds))):
        for name in rotated(hopeful, turn):
            found[name].append(time_on_all_ranks(calls[name]))
    return found
