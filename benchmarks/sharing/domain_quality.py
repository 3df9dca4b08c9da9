"""What small domains gain by gates of their own over shared experts: AUC beside two alternatives.

One model for all rows, which reads the domain as a feature; and a model for each domain, which is
trained on its rows alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.metrics import roc_auc_score

from benchmarks.inputs.training import predictions, split_rows
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.sharing.bench import Bench
from benchmarks.sharing.domain_world import NUMBERS, SIZES, SMALL, TASKS, DomainWorld, draw_domains
from benchmarks.sharing.quality import interval

CORRELATIONS = (0.2, 0.5, 0.9)  # of logits in two domains
OTHERS = ("one for all", "one for each")
_FEW = 32  # rows of a batch where there are few hundreds: else there would be next to no steps


def small_domains(bench: Bench) -> list[Result]:
    """Trains all four ways with every seed; the smaller gain over the two others is what counts."""
    gains: dict[str, list[float]] = {name: [] for name in OTHERS}
    own_towers: list[float] = []
    details: list[dict[str, Any]] = []
    for seed in range(bench.seeds):
        of_seed = [_one(seed, correlation, bench) for correlation in CORRELATIONS]
        for name in OTHERS:
            more = [reached["domains"] - reached[name] for reached in of_seed]
            gains[name].append(float(np.mean(more)))
        more = [reached["own towers"] - reached["domains"] for reached in of_seed]
        own_towers.append(float(np.mean(more)))
        for correlation, reached in zip(CORRELATIONS, of_seed, strict=True):
            rounded = {name: round(auc, 5) for name, auc in reached.items()}
            details.append({"seed": seed, "correlation": correlation, **rounded})
    means = {name: float(np.mean(of)) for name, of in gains.items()}
    worst = min(means, key=lambda name: means[name])
    note = "; ".join(f"{mean:+.4f} over {name}" for name, mean in means.items())
    return [
        Result(
            key="small_domain_gain",
            spread=interval(gains[worst]),
            note=f"AUC, mean of domains and tasks, the smaller of {note}; "
            f"own towers {np.mean(own_towers):+.4f} beside shared ones",
            details=details,
            digits=4,
        )
    ]


def _one(seed: int, correlation: float, bench: Bench) -> dict[str, float]:
    """The AUC that each reaches, and that of the true probabilities."""
    world = draw_domains(seed, correlation, bench.rows)
    own: dict[str, Any] = {"column": "scene"}
    found = {
        "domains": _auc(world, _predicted(world, seed, own)),
        "own towers": _auc(world, _predicted(world, seed, own | {"towers": "own"})),
        "one for all": _auc(world, _predicted(world, seed, None)),
        "one for each": _auc(world, _one_for_each(world, seed)),
        "oracle": _auc(world, world.truth),
    }
    said = ", ".join(f"{name} {auc:.4f}" for name, auc in found.items())
    bench.clock.say(f"  seed {seed}, {correlation}: {said}")
    return found


def _auc(world: DomainWorld, predicted: Mapping[str, np.ndarray]) -> float:
    """Mean over small domains and tasks."""
    scenes = world.test["scene"].to_numpy(zero_copy_only=False)
    found = [
        roc_auc_score(
            world.test[task].to_numpy()[scenes == scene], predicted[task][scenes == scene]
        )
        for task in TASKS
        for scene in SMALL
    ]
    return float(np.mean(found))


def _predicted(
    world: DomainWorld, seed: int, domains: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
    splits = split_rows(world.log, world.test)
    return predictions(_config(domains), splits, seed)


def _one_for_each(world: DomainWorld, seed: int) -> dict[str, np.ndarray]:
    """Predictions of each domain's test rows by a model of its own rows."""
    scenes = world.test["scene"].to_numpy(zero_copy_only=False)
    found = {task: np.zeros(len(scenes)) for task in TASKS}
    for scene in SMALL:
        log, test = (_of(table, scene) for table in (world.log, world.test))
        for task, p in predictions(_config(None, _FEW), split_rows(log, test), seed).items():
            found[task][scenes == scene] = p
    return found


def _of(table: pa.Table, scene: str) -> pa.Table:
    return table.filter(pc.equal(table["scene"], scene))


def _config(domains: Mapping[str, Any] | None, batch_size: int = 256) -> dict[str, Any]:
    return {
        "features": [
            *({"kind": "categorical", "name": name} for name in ("scene", *SIZES)),
            *({"kind": "numeric", "name": name, "buckets": 16} for name in NUMBERS),
        ],
        "tasks": [{"name": task, "label": task} for task in TASKS],
        "model": {
            "embedding_dim": 8,
            "num_experts": 8,
            "expert": {"hidden": [32, 16]},
            "tower": {"hidden": [16]},
            "domains": domains,
        },
        "training": {"epochs": 8, "batch_size": batch_size, "loggers": []},
    }


KEYS = ("small_domain_gain",)
RACES = (Race(KEYS, small_domains),)
