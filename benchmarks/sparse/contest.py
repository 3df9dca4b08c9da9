"""Dense and sparse models on one log, each as large as one time allows."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from benchmarks.inputs.section import log_loss, split_rows
from benchmarks.sparse.worlds import ID_COLUMNS, NUMBER_COLUMNS, World
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.rows.splits import Splits
from mmoe.train import train_run
from mmoe.train.prepare import PreparedData, prepare
from mmoe.train.warm_start.earlier import WarmStart

# Of the dense part. At 1e-3 dense and sparse models lost more; at 1e-2, of segments, both lost less
LEARNING_RATE = 3e-3
EXPERTS, HIDDEN = 64, 128  # of a sparse pool, and the first layer of each
BATCH = 4096
TEST_ROWS = 100_000
_TRIAL_ROWS = 120_000
_SMALLEST = 8


@dataclass(frozen=True)
class Contestant:
    """A family of models, of which one number says how large."""

    is_sparse: bool
    model: Callable[[int], dict[str, Any]]  # size → `model` section
    sizes: tuple[int, int]  # of the two short trainings
    most: int  # a line through two points says nothing far beyond them


def _experts(width: int) -> dict[str, Any]:
    return {"hidden": [width, max(width // 2, 8)]}


def _pool(experts: int, kind: str = "mmoe", **gate: Any) -> Callable[[int], dict[str, Any]]:
    """Experts of a pool, as wide as the size says, of which gates pick some."""
    gate = {"kind": "top_k", "shared_logits": True, **gate}
    return lambda width: {
        "kind": kind, "num_experts": experts, "gate": gate, "expert": _experts(width)
    }  # fmt: skip


def _bottom(width: int) -> dict[str, Any]:
    return {"kind": "shared_bottom", "expert": {"hidden": [width, HIDDEN // 2]}}


def _dense(experts: int) -> dict[str, Any]:
    gate = {"kind": "softmax", "shared_logits": True}
    return {"num_experts": experts, "gate": gate, "expert": _experts(HIDDEN)}


def _ple(width: int) -> dict[str, Any]:
    return {"kind": "ple", "shared_experts": 4, "task_experts": 1, "expert": _experts(width)}


def _sparse(model: Callable[[int], dict[str, Any]]) -> Contestant:
    return Contestant(True, model, (HIDDEN // 2, HIDDEN), 2 * HIDDEN)


_SHARED = {"select": "joint", "private_k": 0}  # all gates of a row pick the same
CONTESTANTS: Mapping[str, Contestant] = {
    "Shared-Bottom": Contestant(False, _bottom, (512, 1024), 4096),
    "dense MMoE": Contestant(False, _dense, (4, 8), 32),
    "PLE": Contestant(False, _ple, (HIDDEN // 2, HIDDEN), 2 * HIDDEN),
    "alone, 2 each": _sparse(_pool(EXPERTS, k=2)),
    "budget 8": _sparse(_pool(EXPERTS, k=4, select="budget", budget=8, floor=0)),
    "joint 8": _sparse(_pool(EXPERTS, **_SHARED, shared_k=8)),
    "joint 8 beside 4": _sparse(_pool(EXPERTS, **_SHARED, shared_k=8, always=4)),
    "joint 4 beside 8": _sparse(
        _pool(EXPERTS + 8, **_SHARED, shared_k=4, always=8, routed_start=0.0)
    ),
}
REFERENCE = "joint 8"  # whose time, with experts as wide as HIDDEN, all others get


def raw_config(tasks: tuple[str, ...], model: Mapping[str, Any], **training: Any) -> dict[str, Any]:
    features = [{"kind": "categorical", "name": name} for name in ID_COLUMNS]
    features += [{"kind": "numeric", "name": name} for name in NUMBER_COLUMNS]
    return {
        "features": features,
        "tasks": [{"name": task, "label": task} for task in tasks],
        "model": {"embedding_dim": 16, **model},
        "training": {
            "epochs": 1,
            "batch_size": BATCH,
            "precision": "bf16",
            "monitor": "mean.logloss",
            "optimizer": {"kind": "adam", "learning_rate": LEARNING_RATE},
            "loggers": ["tensorboard"],
            **training,
        },
    }


@dataclass(frozen=True)
class Reached:
    """What one pass over a log reached."""

    regret: float  # test log-loss above the truth's, mean of the tasks
    normalized: float  # entropy of rows before they were learnt, over that of the base rates
    seconds: float  # of the steps
    curve: list[tuple[float, float]]  # seconds, loss of the last training batches then

    def shown(self) -> dict[str, float]:
        return {
            "regret": round(self.regret, 5),
            "progressive_ne": round(self.normalized, 4),
            "seconds": round(self.seconds, 1),
        }


@dataclass
class Log:
    """A world's rows, encoded once for all that are trained on them."""

    world: World
    splits: Splits
    prepared: PreparedData | None = None

    @classmethod
    def of(cls, world: World) -> "Log":
        train = len(world.log) - TEST_ROWS
        return cls(world, split_rows(world.log.slice(0, train), world.log.slice(train)))

    def first(self, rows: int) -> "Log":
        """Returns the first rows alone, with others to test them on."""
        log = self.world.log.slice(0, rows + TEST_ROWS)
        return Log.of(World(log, self.world.truth_NT[: len(log)]))

    def config(self, model: Mapping[str, Any], seed: int, **training: Any) -> RunConfig:
        return config_from_dict({**raw_config(self.world.tasks, model, **training), "seed": seed})

    def train(
        self,
        config: RunConfig,
        folder: Path | None = None,  # where the run is to stay; None: nowhere
        warm_start: WarmStart | None = None,
    ) -> Reached:
        found: list[np.ndarray] = []
        if warm_start is None and self.prepared is None:
            self.prepared = prepare(config, splits=self.splits)
        shared = None if warm_start else self.prepared
        place = Path(tempfile.mkdtemp(prefix="mmoe-sparse-"))
        try:
            run = place / "run" if folder is None else folder
            train_run(
                config,
                run,
                splits=self.splits,
                shared=shared,
                warm_start=warm_start,
                on_test=lambda predictions_NP, _: found.append(predictions_NP.astype(np.float64)),
            )
            return self._reached(run, found[0])
        finally:
            shutil.rmtree(place)

    def _reached(self, run: Path, predicted_NT: np.ndarray) -> Reached:
        truth_NT = self.world.truth_NT[-len(predicted_NT) :]
        (epoch,) = json.loads((run / "history.json").read_text())["epochs"]
        rates = self.world.truth_NT.mean(0)
        losses = np.array([epoch["loss"][task] for task in self.world.tasks])
        return Reached(
            log_loss(truth_NT, predicted_NT) - log_loss(truth_NT, truth_NT),
            float(np.mean(losses / -(rates * np.log(rates) + (1 - rates) * np.log(1 - rates)))),
            epoch["seconds"],
            _curve(run, epoch["seconds"]),
        )


def _curve(run: Path, seconds: float) -> list[tuple[float, float]]:
    """Loss of the last steps, in steps of a twentieth of the time."""
    (file,) = (run / "tensorboard").glob("events.*")
    by_step: dict[int, list[float]] = {}
    for event in LegacyEventFileLoader(str(file)).Load():
        for value in event.summary.value:
            if value.tag.startswith("train/") and value.tag.endswith("/loss"):
                by_step.setdefault(event.step, []).append(value.simple_value)
    steps = sorted(by_step)
    means = np.array([np.mean(by_step[step]) for step in steps])
    pieces = np.array_split(np.arange(len(steps)), max(min(20, len(steps)), 1))
    last = steps[-1] if steps else 1
    return [
        (round(seconds * steps[piece[-1]] / last, 2), round(float(means[piece].mean()), 5))
        for piece in pieces
        if len(piece)
    ]


def sizes_within(log: Log, say: Callable[[str], None]) -> dict[str, int]:
    """The size of each contestant that takes as long as the reference.

    Two short trainings of each, whose times lie on a line.
    """
    trial = log.first(_TRIAL_ROWS)

    def seconds(name: str, size: int) -> float:
        return trial.train(trial.config(CONTESTANTS[name].model(size), 0)).seconds

    seconds(REFERENCE, HIDDEN)  # warms up
    limit = min(seconds(REFERENCE, HIDDEN) for _ in range(2))
    sizes = {}
    for name, contestant in CONTESTANTS.items():
        if name == REFERENCE:
            sizes[name] = HIDDEN
            continue
        small, large = contestant.sizes
        found = seconds(name, small), seconds(name, large)
        more = (limit - found[0]) / max(found[1] - found[0], 1e-9)
        wanted = round(small + more * (large - small))
        if large > 32:
            wanted = wanted // 8 * 8
        smallest = 1 if large <= 32 else _SMALLEST
        sizes[name] = min(max(wanted, smallest), contestant.most)
        say(f"  {name}: {found[0]:.1f} s of {small}, {found[1]:.1f} of {large}; {sizes[name]}")
    return sizes
