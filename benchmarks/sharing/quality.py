"""What deciding together costs in quality: log-loss at equal computed pairs, on oracle data.

Gates that decide alone are trained with one and with two picks; a line through their two losses
says what they would reach with as many pairs of row and expert as the others compute.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from benchmarks.inputs.training import log_loss, split_rows
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from benchmarks.sharing import random_shared
from benchmarks.sharing.bench import Bench
from benchmarks.sharing.quality_world import SIZES, TASKS, TRAIN_SHARE, draw_world
from mmoe.config import config_from_dict
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.train import train_run

CORRELATIONS = (0.2, 0.5, 0.9)
EXPERTS, HIDDEN = 64, (32, 16)
SHARED, PRIVATE, BUDGET = 3, 1, 12  # a budget that has room for every first choice
PAIRS = SHARED + PRIVATE * len(TASKS)  # of a row, at most, of joint picks
_JOINT = {"select": "joint", "shared_k": SHARED, "private_k": PRIVATE}
# Name → its `model` section
MODELS: Mapping[str, Mapping[str, Any]] = {
    "alone, k 1": {"gate": {"kind": "top_k", "k": 1}},
    "alone, k 2": {"gate": {"kind": "top_k", "k": 2}},
    "joint": {"gate": {"kind": "top_k", **_JOINT}},
    "budget": {"gate": {"kind": "top_k", "k": 4, "select": "budget", "budget": BUDGET}},
    "random": {"gate": {"kind": "random_shared", **_JOINT}},
    # Of as many products a row as joint picks have at most
    "dense MMoE": {"num_experts": PAIRS, "gate": {"kind": "softmax"}},
    "Shared-Bottom": {
        "kind": "shared_bottom",
        "expert": {"hidden": [HIDDEN[0] * PAIRS, HIDDEN[1]]},
    },
}
TOGETHER = ("joint", "budget")


@dataclass(frozen=True)
class Found:
    """What one training reached.

    Attributes:
        losses: By task, expected over labels, less the oracle's.
        pairs: Distinct pairs of row and expert, for each test row.
    """

    losses: Mapping[str, float]
    pairs: float

    @property
    def loss(self) -> float:
        """Mean over the tasks."""
        return float(np.mean(list(self.losses.values())))


def qualities(bench: Bench) -> list[Result]:
    """Trains every model with every seed and correlation."""
    gaps: dict[str, list[float]] = {name: [] for name in (*TOGETHER, "random")}
    others: dict[str, list[float]] = {name: [] for name in ("dense MMoE", "Shared-Bottom")}
    by_task: dict[str, list[list[float]]] = {name: [] for name in TOGETHER}
    details: list[dict[str, Any]] = []
    for seed in range(bench.seeds):
        with random_shared.known():
            of_seed = [trained(MODELS, seed, correlation, bench) for correlation in CORRELATIONS]
        for name in gaps:
            gaps[name].append(float(np.mean([1e4 * _gain(found, name) for found in of_seed])))
        for name in others:
            less = [1e4 * (found[name].loss - found["joint"].loss) for found in of_seed]
            others[name].append(float(np.mean(less)))
        for name in TOGETHER:
            tasks = [[1e4 * _gain(found, name, task) for task in TASKS] for found in of_seed]
            by_task[name].append(np.mean(tasks, axis=0).tolist())
        for correlation, found in zip(CORRELATIONS, of_seed, strict=True):
            reached = {name: [round(f.loss, 6), round(f.pairs, 2)] for name, f in found.items()}
            details.append({"seed": seed, "correlation": correlation, **reached})
    beside = ", ".join(
        f"{name} {np.mean(less):+.1f} above joint's" for name, less in others.items()
    )
    results = []
    for name in TOGETHER:
        mean_T = np.mean(by_task[name], axis=0)
        worst = f"worst task {TASKS[int(mean_T.argmin())]} {mean_T.min():+.1f}"
        control = f"random shared picks {np.mean(gaps['random']):+.1f}"
        note = f"log-loss in 1e-4 at equal pairs; {worst}; {control}; {beside}"
        results += _as_results(name, gaps[name], note, details)
    worse = [ours - chance for ours, chance in zip(gaps["joint"], gaps["random"], strict=True)]
    results += [Result(key="joint_over_random", spread=interval(worse), digits=1)]
    return results


def _as_results(
    name: str, gaps: Sequence[float], note: str, details: Sequence[Mapping[str, Any]]
) -> list[Result]:
    spread = interval(gaps)
    low = Spread(spread.low, spread.low, spread.low, spread.count)
    return [
        Result(key=f"{name}_quality", spread=spread, note=note, details=details, digits=1),
        Result(key=f"{name}_quality_low", spread=low, note="lower end, 95 %", digits=1),
    ]


def interval(values: Sequence[float]) -> Spread:
    """Returns mean and 95 % interval over seeds, by Student's t; of one seed the value itself."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Spread(mean, mean, mean, count)
    reach = float(t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5)
    return Spread(mean, mean - reach, mean + reach, count)


def _gain(found: Mapping[str, Found], name: str, task: str | None = None) -> float:
    """How much less it loses than gates that decide alone would, with as many pairs."""
    one, two, ours = found["alone, k 1"], found["alone, k 2"], found[name]

    def loss(of: Found) -> float:
        return of.loss if task is None else of.losses[task]

    share = (ours.pairs - one.pairs) / (two.pairs - one.pairs)
    return loss(one) + share * (loss(two) - loss(one)) - loss(ours)


def trained(
    models: Mapping[str, Mapping[str, Any]], seed: int, correlation: float, bench: Bench
) -> dict[str, Found]:
    """Trains models, name → `model` section, on the log of a seed."""
    world = draw_world(seed, correlation, bench.rows)
    train = round(len(world.log) * TRAIN_SHARE)
    splits = split_rows(world.log.slice(0, train), world.log.slice(train))
    truth = {task: p[train:] for task, p in world.truth.items()}
    found = {}
    for name, model in models.items():
        predicted, pairs = _train(_config(model), splits, seed)
        losses = {t: log_loss(p, predicted[t]) - log_loss(p, p) for t, p in truth.items()}
        found[name] = Found(losses, pairs)
        text = f"seed {seed}, {correlation}: {name}: {found[name].loss:.5f} above the oracle"
        bench.clock.say(f"  {text}, {pairs:.1f} pairs a row")
    return found


def _config(model: Mapping[str, Any]) -> dict[str, Any]:
    experts = {} if "kind" in model else {"num_experts": EXPERTS}
    sizes = {"embedding_dim": 8, **experts, "expert": {"hidden": list(HIDDEN)}}
    return {
        "features": [
            *({"kind": "categorical", "name": name} for name in SIZES),
            *({"kind": "numeric", "name": name} for name in ("price", "age")),
        ],
        "tasks": [{"name": task, "label": task} for task in TASKS],
        "model": {**sizes, "tower": {"hidden": [16]}, **model},
        "training": {"epochs": 3, "batch_size": 512, "loggers": []},
    }


def _train(raw: Mapping[str, Any], splits: Any, seed: int) -> tuple[dict[str, np.ndarray], float]:
    """Predictions of the test rows, and the pairs that a row of them computed."""
    folder = Path(tempfile.mkdtemp(prefix="sharing-"))
    found: list[np.ndarray] = []

    def keep(predictions_NP: np.ndarray, labels: EncodedLabels) -> None:
        found.append(predictions_NP.astype(np.float64))

    run = config_from_dict({**raw, "seed": seed})
    try:
        train_run(run, folder / "run", splits=splits, on_test=keep)
        gates = json.loads((folder / "run" / "curves.json").read_text())["gates"]
    finally:
        shutil.rmtree(folder)
    (predictions_NP,) = found
    predicted = {task.name: predictions_NP[:, i] for i, task in enumerate(run.tasks)}
    ratio = gates[0]["distinct_pair_ratio"] if gates else None
    if ratio is None:
        return predicted, float(run.model.visible_experts)
    return predicted, ratio * len(TASKS) * (run.model.gate.picks or 0)


KEYS = ("joint_quality", "joint_quality_low", "budget_quality", "budget_quality_low")
RACES = (Race(KEYS, qualities),)
