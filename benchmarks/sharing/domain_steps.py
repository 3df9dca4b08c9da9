"""A whole training step of `big` with four tasks: 16 domains over none."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.sharing.bench import Bench
from benchmarks.train.configs import raw_config
from benchmarks.train.logs import Log
from benchmarks.train.workloads import BATCH, WORKLOADS
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.models.build import build_ranker
from mmoe.parallel import training_group
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import Step, StepProgram

TASKS = ("click", "finish", "like", "buy")
DOMAINS = 16
STEPS = 3  # of a measurement
# Name → what its `model` section has beside sizes
WAYS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "shared": {"domains": {"column": "scene"}},
    "own": {"domains": {"column": "scene", "towers": "own"}},
}
_BIG = WORKLOADS["big"]


def domain_steps(bench: Bench) -> list[Result]:
    """Races steps without domains, with gates of 16 domains, and with towers of theirs as well."""
    with training_group():
        log = draw_log(STEPS * BATCH)
        steps = {way: _Steps(step_config(way), log) for way in WAYS}
        times = bench.clock.race("steps", steps)
    results = []
    for key, way in (("domains_16_over_1", "shared"), ("domains_16_over_1_own_towers", "own")):
        of_way, of_none = times.median(way), times.median("none")
        results.append(
            Result(
                key=key,
                spread=times.ratio(way, "none"),
                ours_ms=of_way * 1e3 / STEPS,
                other_ms=of_none * 1e3 / STEPS,
                note="16 domains over none, a step of 4,096 rows, 4 tasks, fp32",
            )
        )
    return results


class _Steps:
    """A model in training, and its batches."""

    def __init__(self, config: RunConfig, log: pa.Table) -> None:
        encoder = FeatureEncoder.fit(config, log, "log")
        data = BatchSource.of_table(log, encoder, "log", config).held
        assert data is not None
        torch.manual_seed(0)
        ranker = build_ranker(config, encoder).train()
        optimizer = build_optimizer(ranker.network, config.training.optimizer)
        average = build_average(ranker.network, config.training.ema_decay)
        state = TrainingState(ranker, optimizer, average, Position())
        self.program = StepProgram(state, config, total_steps=1_000_000)
        self.batches = [
            data.batch(slice(first, first + BATCH)) for first in range(0, len(log), BATCH)
        ]

    def __call__(self) -> None:
        for batch in self.batches:
            self.program.train(Step.of([batch]))


def step_config(way: str) -> RunConfig:
    """`big` with four tasks, as one of `WAYS`."""
    log = Log(replace(_BIG, tasks=TASKS), Path("unused"), STEPS * BATCH)
    raw = raw_config(log, precision="fp32")
    return config_from_dict({**raw, "model": {**raw["model"], **WAYS[way]}})


def draw_log(rows: int) -> pa.Table:
    """Rows of `big` with a scene each; ids of which a few are met often."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.normal(size=rows) for name in _BIG.dense_columns}
    for ids in _BIG.single:
        columns[ids.column] = np.exp(rng.random(rows) * np.log(ids.rows)).astype(np.int64)
    columns["scene"] = rng.integers(DOMAINS, size=rows)
    return pa.table(columns | {task: rng.integers(0, 2, rows) for task in TASKS})


KEYS = ("domains_16_over_1",)
RACES = (Race(KEYS, domain_steps),)
