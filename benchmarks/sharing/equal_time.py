"""A dense MMoE and a Shared-Bottom that take as long to train as joint picks do: who loses less.

Beside them in `quality.py` stand those of as many products a row. Sizes are found first, in
processor time, by a line through two trainings of each kind.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.sharing.bench import Bench
from benchmarks.sharing.quality import CORRELATIONS, HIDDEN, MODELS, PAIRS, interval, trained

_TRIALS = 3  # of each size, in turns
_LARGE = 8  # times as many experts, of the second size
_MOST = 16  # a line that hardly rises says nothing beyond
_DENSE, _BOTTOM = "dense MMoE", "Shared-Bottom"
KEYS = ("dense_equal_time", "shared_bottom_equal_time")


def _dense(experts: int) -> dict[str, Any]:
    return {**MODELS[_DENSE], "num_experts": experts}


def _bottom(experts: int) -> dict[str, Any]:
    """One expert, as wide as so many."""
    return {**MODELS[_BOTTOM], "expert": {"hidden": [HIDDEN[0] * experts, HIDDEN[1]]}}


_SIZED: Mapping[str, Callable[[int], dict[str, Any]]] = {_DENSE: _dense, _BOTTOM: _bottom}


def equal_times(bench: Bench) -> list[Result]:
    """Log-loss of each above that of joint picks, over seeds and correlations."""
    sizes = _sizes(bench)
    models = {name: sized(sizes[name]) for name, sized in _SIZED.items()}
    gaps: dict[str, list[float]] = {name: [] for name in models}
    details: list[dict[str, Any]] = []
    for seed in range(bench.seeds):
        less: dict[str, list[float]] = {name: [] for name in models}
        for correlation in CORRELATIONS:
            some = {"joint": MODELS["joint"], **models}
            found = trained(some, seed, correlation, bench)
            for name in models:
                less[name].append(1e4 * (found[name].loss - found["joint"].loss))
            losses = {name: round(f.loss, 6) for name, f in found.items()}
            details.append({"seed": seed, "correlation": correlation, **losses})
        for name in models:
            gaps[name].append(float(np.mean(less[name])))
    return [
        Result(
            key=key,
            spread=interval(gaps[name]),
            note=f"log-loss in 1e-4 above joint's; as large as {sizes[name]} experts",
            details=details,
            digits=1,
        )
        for key, name in zip(KEYS, models, strict=True)
    ]


def _sizes(bench: Bench) -> dict[str, int]:
    """How many experts make a training as long as that of joint picks."""
    models = {
        (name, times): sized(times * PAIRS)
        for name, sized in _SIZED.items()
        for times in (1, _LARGE)
    }
    some = {"joint": MODELS["joint"], **{f"{name} × {n}": m for (name, n), m in models.items()}}
    seconds: dict[str, list[float]] = {name: [] for name in some}
    for _ in range(_TRIALS):
        for name, model in some.items():
            began = time.process_time()
            trained({name: model}, 0, CORRELATIONS[0], bench)
            seconds[name].append(time.process_time() - began)
    joint, *_ = found = {name: float(np.median(each)) for name, each in seconds.items()}
    sizes = {}
    for name in _SIZED:
        small, large = (found[f"{name} × {times}"] for times in (1, _LARGE))
        more = (found[joint] - small) / max(large - small, 1e-9)
        times = 1 + (_LARGE - 1) * more
        sizes[name] = max(1, round(PAIRS * min(times, _MOST)))
        said = f"{found[joint]:.1f} s as joint picks: {small:.1f} s with {PAIRS}, {large:.1f}"
        bench.clock.say(f"  {name}: {sizes[name]} experts take {said} with {_LARGE * PAIRS}")
    return sizes


RACES = (Race(KEYS, equal_times),)
