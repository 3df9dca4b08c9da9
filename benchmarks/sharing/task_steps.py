"""Whole training steps of `big` with any number of tasks, on rows that lie in memory."""

from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from benchmarks.train.configs import raw_config
from benchmarks.train.logs import Log
from benchmarks.train.workloads import BATCH, WORKLOADS, Workload
from benchmarks.train.world import World
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.splits import Splits
from mmoe.parallel import ensure_process_group
from mmoe.run.allocator import keep_freed_memory
from mmoe.train.begin import training_state
from mmoe.train.optim import build_optimizer
from mmoe.train.prepare import PreparedData, prepare
from mmoe.train.state import TrainingState
from mmoe.train.step import train_step

BATCHES = 8  # of an epoch
STEPS = 1_000_000  # more than any race takes
Network = Callable[[int, int], nn.Module]


def many_tasks(tasks: int, workload: Workload = WORKLOADS["big"]) -> Workload:
    """The workload with as many tasks; all but the first follow a click."""
    names = tuple(f"task{number}" for number in range(tasks))
    return replace(workload, name=f"{workload.name}_{tasks}_tasks", tasks=names)


class Steps:
    """Rows of a workload, and what trains on them.

    Args:
        workload: Columns and tasks.
        batches: Of `BATCH` rows, in an epoch.
    """

    def __init__(self, workload: Workload, batches: int = BATCHES) -> None:
        log = Log(workload, Path("unused"), batches * BATCH)
        self.config: RunConfig = config_from_dict(raw_config(log, precision="fp32"))
        self.data: PreparedData = prepare(self.config, splits=_splits(workload, batches * BATCH))
        self.input_dim = workload.input_dim

    def of(self, network: Network | None = None) -> Callable[[], None]:
        """Makes a contestant.

        Args:
            network: Takes the place of ours, by the width of its input and the number of tasks.
        """
        return self.step(self.state(network))

    def state(self, network: Network | None = None) -> TrainingState:
        """Makes what a contestant trains."""
        keep_freed_memory()  # as every training does
        ensure_process_group()
        state = training_state(self.config, self.data)
        if network is not None:
            torch.manual_seed(self.config.seed)
            state.ranker.network = network(self.input_dim, len(self.config.tasks))
            state.optimizer = build_optimizer(state.ranker.network, self.config.training.optimizer)
        state.train_mode()
        return state

    def step(self, state: TrainingState) -> Callable[[], None]:
        """Makes a step: next batch, lookups, network, losses, gradients and update."""
        batches = self._batches()

        def step() -> None:
            train_step(state, [next(batches)], self.config, STEPS)

        return step

    def _batches(self) -> Generator[Batch]:
        for epoch in count():
            yield from self.data.train.epoch_batches(self.config.seed, epoch, BATCH)


def _splits(workload: Workload, rows: int) -> Splits:
    """Training rows, and a few of each other split."""
    world = World(workload, 0)
    columns = world.draw(rows, [0, 1])
    labels_NT = world.labels(columns, [0, 2])
    arrays = {column.column: pa.array(columns.ids[column.column]) for column in workload.ids}
    for number, name in enumerate(workload.dense_columns):
        arrays[name] = pa.array(np.ascontiguousarray(columns.dense_NF[:, number]))
    for number, name in enumerate(workload.tasks):
        arrays[name] = pa.array(np.ascontiguousarray(labels_NT[:, number]))
    table = pa.table(arrays)
    return Splits(train=table, validation=table.slice(0, 500), test=table.slice(0, 500))
