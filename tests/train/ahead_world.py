"""One rank of a gloo world that trains with the next step's ids under way; run by the tests.

Every rank takes the steps of each case twice, with `parallel.pipeline` and without, and compares
the bits. Whole runs follow: undisturbed, stopped and resumed, without. What it finds is its report.
"""

import json
import os
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from mmoe.config import ManagedIds, RunConfig, config_from_dict
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.splits import Splits
from mmoe.embeddings import build_embeddings, local_shards, managed_ids
from mmoe.models import Ranker, build_network
from mmoe.run.console import SilentReporter
from mmoe.train import train_run
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import Step, StepProgram, StepRanks
from tests.embeddings.sharded_world import FEATURES, TABLES, batch_of_all, part
from tests.ranks import PATIENCE
from tests.runs import train_step

F, TASKS = 3, ("click", "buy")
# Rows of each rank in each batch of each step: even, uneven, a rank without any, none at all
STEPS = (
    ((6, 6), (6, 6)),
    ((7, 2), (0, 5)),
    ((0, 4), (0, 3)),
    ((5, 0), (0, 5)),
    ((0, 0), (0, 0)),
    ((3, 1),),
)


@dataclass(frozen=True)
class Case:
    tables: dict[str, Any]
    per_table: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "rowwise_adagrad"
    gate: dict[str, Any] = field(default_factory=dict)


CASES = {
    "whole tables": Case({"sharding": "table_wise"}),
    "one of each": Case(
        {"sharding": "table_wise"},
        {
            "item": {"sharding": "row_wise"},
            "city": {"sharding": "column_wise"},
            "hour": {"sharding": "data_parallel"},
        },
        "adagrad",
        {"kind": "top_k", "k": 2},
    ),
}


def config_of(case, pipeline="auto"):
    return RunConfig.model_validate(
        {
            "features": [{"name": table.name, "kind": "categorical"} for table in TABLES],
            "tasks": [{"name": name, "label": name} for name in TASKS],
            "model": {
                "num_experts": 3,
                "gate": case.gate,
                "expert": {"hidden": [8], "dropout": 0.2},
                "tower": {"hidden": [4]},
            },
            "training": {
                "accumulate_batches": 2,
                "gradient_clip": 0.5,
                "ema_decay": 0.9,
                "embedding_optimizer": {"kind": case.optimizer, "learning_rate": 0.1},
                "optimizer": {"schedule": "linear", "warmup_steps": 2},
            },
            "parallel": {"pipeline": pipeline, "tables": case.tables, "per_table": case.per_table},
        }
    )


def make_state(config, tables=TABLES):
    torch.manual_seed(0)
    embeddings = build_embeddings(
        tables,
        FEATURES,
        optimizer=config.training.embedding_optimizer,
        backend="torchrec",
        parallel=config.parallel,
    )
    wide = F + sum(next(t.dim for t in TABLES if t.name == f.table) for f in FEATURES)
    network = build_network(config.model, wide, TASKS, config.parallel)
    ranker = Ranker(embeddings, network, F).train()
    average = build_average(network, config.training.ema_decay)
    optimizer = build_optimizer(network, config.training.optimizer)
    torch.manual_seed(dist.get_rank())  # dropout
    return TrainingState(ranker, optimizer, average, Position())


def make_batches(step, rank):
    """This rank's rows of the batches of a step."""
    return [make_batch(10 * step + number, rows, rank) for number, rows in enumerate(STEPS[step])]


def make_batch(seed, rows, rank):
    values, lengths, weights = part(batch_of_all(seed, FEATURES, rows), rows, rank)
    chance = torch.Generator().manual_seed(1000 * rank + seed)
    shape = rows[rank], len(TASKS)
    return Batch(
        dense_BF=torch.randn(rows[rank], F, generator=chance),
        values=values,
        lengths_CB=lengths,
        labels_BT=torch.randint(0, 2, shape, generator=chance).float(),
        observed_BT=torch.rand(shape, generator=chance) < 0.7,
        weights_BT=torch.ones(shape),
        num_rows=rows[rank],
        id_weights=weights,
    )


def bits(state):
    """All that training changes, as this rank holds it."""
    ranker = state.ranker
    found = {f"network {name}": value for name, value in ranker.network.state_dict().items()}
    for what in ("table_shards", "optimizer_shards"):
        for name, value in getattr(ranker.tables, what)().items():
            for number, piece in enumerate(local_shards(value)):
                found[f"{what} {name} {number}"] = piece.tensor
    for name, value in state.average.module.state_dict().items():
        found[f"average {name}"] = value
    return {name: value.clone() for name, value in found.items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@contextmanager
def spying():
    """Lists what a step does, in order, and when ids leave."""
    told, send = [], dist.all_to_all_single

    def sending(*arguments, **named):
        sent = named["input"] if "input" in named else arguments[1]
        if sent.dtype == torch.int64:  # ids, and how many there are
            told.append("ids")
        return send(*arguments, **named)

    def phase(name, real):
        def run(*arguments):
            told.append(name)
            found = real(*arguments)
            told.append("done")
            return found

        return run

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(dist, "all_to_all_single", sending))
        for name in ("forward", "backward", "update"):
            real = getattr(StepProgram, name)
            stack.enter_context(mock.patch.object(StepProgram, name, phase(name, real)))
        yield told


def pipeline(state, batches, config, ranks):
    """Steps with the ids of the next one under way; None where none leave ahead."""
    program = StepProgram(state, config, 9, ranks)
    return state.ranker.tables.ids_ahead(map(Step.of, batches), program)


def train(config, rank, pipelined):
    """State, losses of each step, and what a spy saw."""
    state = make_state(config)
    ranks = StepRanks.of(state.ranker.network, PATIENCE)
    batches = (make_batches(step, rank) for step in range(len(STEPS)))
    if not pipelined:
        assert pipeline(state, batches, config, ranks) is None
        return state, [train_step(state, taken, config, 9, ranks) for taken in batches], []
    losses = []
    with spying() as told:
        steps = pipeline(state, batches, config, ranks)
        assert steps is not None
        with closing(steps):
            while (step := steps.step()) is not None:
                assert len(step.batches) == len(STEPS[len(losses)])
                losses.append(step.found)
            assert steps.step() is None
    return state, losses, told


def compare(case, rank):
    state, losses, told = train(config_of(case), rank, pipelined=True)
    other, expected, _ = train(config_of(case, "off"), rank, pipelined=False)
    # The tables can be asked by others again, and give the same
    batch = make_batch(77, (3, 4), rank)
    rows = [of.ranker.eval().look_up(batch).x_BD for of in (state, other)]
    return {
        "bits": same(bits(state), bits(other)),
        "losses": [vars(one) for one in losses] == [vars(one) for one in expected],
        "rows": torch.equal(*rows),
        "told": told,
    }


def diverges(rank):
    """Rank 1 alone meets a NaN in the third step; what each rank says, and what is left."""
    config = config_of(CASES["one of each"])
    state = make_state(config)
    ranks = StepRanks.of(state.ranker.network, PATIENCE)

    def batches():
        for step in range(len(STEPS)):
            taken = make_batches(step, rank)
            if step == 2 and rank == 1:
                taken[0].dense_BF[:] = torch.nan
            yield taken

    steps = pipeline(state, batches(), config, ranks)
    assert steps is not None
    found = {"error": ""}
    with closing(steps):
        steps.step()
        steps.step()
        state.position.step = 2
        before = bits(state)
        try:
            steps.step()
        except ValueError as error:
            found["error"] = str(error)
    batch = make_batch(77, (3, 4), rank)
    x_BD = state.ranker.look_up(batch).x_BD
    return {**found, "as_before": same(before, bits(state)), "rows": len(x_BD)}


def stops_iterating():
    """A step that raises what says elsewhere that there are no more; the error, and its cause."""
    config = config_of(CASES["whole tables"])
    state = make_state(config)
    ranks = StepRanks.of(state.ranker.network, PATIENCE)
    batches = (make_batches(step, dist.get_rank()) for step in range(len(STEPS)))
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(StepProgram, "update", side_effect=StopIteration))
        steps = pipeline(state, batches, config, ranks)
        assert steps is not None
        stack.enter_context(closing(steps))
        try:
            steps.step()
        except RuntimeError as error:
            return str(error), type(error.__cause__).__name__
    return None


def not_with_managed_ids(rank):
    rules = ManagedIds(rows=12, evict="lru", evict_every=1)
    tables = [replace(TABLES[0], num_rows=14, managed=rules), *TABLES[1:]]
    config = config_of(CASES["whole tables"])
    state = make_state(config, tables)
    assert managed_ids(state.ranker.embeddings) is not None
    ranks = StepRanks.of(state.ranker.network, PATIENCE)
    return pipeline(state, iter([make_batches(0, rank)]), config, ranks) is None


class Stopped(Exception):
    """In place of a kill."""


def whole_runs(folder, rank):
    """Runs over 1,201 rows in batches of 200: the last batch has one row, of the second rank."""
    chance = np.random.default_rng(5)
    rows = 1_601
    user, item = chance.integers(0, 40, rows), chance.integers(0, 15, rows)
    log = pa.table(
        {
            "user": user,
            "item": item,
            "price": chance.lognormal(size=rows),
            "click": (chance.random(rows) < 0.2 + 0.04 * item).astype(float),
        }
    )
    splits = Splits(train=log[:1201], validation=log[1201:1401], test=log[1401:], origin="log")

    def run(name, pipeline, **more):
        config = config_from_dict(run_config(pipeline))
        train_run(config, folder / name, splits=splits, reporter=SilentReporter(), **more)
        return checkpoints(folder / name)

    whole, without = run("ahead", "auto"), run("off", "off")
    stop_after(3, lambda: run("stopped", "auto"))
    position = json.loads(next((folder / "stopped").glob("checkpoint/*/state.json")).read_text())
    return {
        "off": same(whole, without),
        "resumed": same(whole, run("stopped", "auto", resume=True)),
        "batch": position["batch"],
        "step": position["step"],
        "history": history(folder / "ahead") == history(folder / "stopped"),
    }


def run_config(pipeline):
    return {
        "features": [
            {"kind": "categorical", "name": "user", "dim": 8},
            {"kind": "categorical", "name": "item", "dim": 4},
            {"kind": "numeric", "name": "price"},
        ],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {
            "num_experts": 2,
            "expert": {"hidden": [8], "dropout": 0.1},
            "tower": {"hidden": [4]},
        },
        "training": {
            "epochs": 3,
            "batch_size": 200,
            "accumulate_batches": 2,
            "checkpoint_every_steps": 1,
            "embedding_backend": "torchrec",
        },
        "parallel": {
            "pipeline": pipeline,
            "tables": {"sharding": "table_wise"},
            "per_table": {"user": {"sharding": "row_wise"}},
        },
    }


def stop_after(saves, run):
    """Runs until that many checkpoints are written."""
    left, save = [saves], TrainingState.save

    def save_and_stop(self, *arguments, **named):
        save(self, *arguments, **named)
        left[0] -= 1
        if not left[0]:
            raise Stopped

    with mock.patch.object(TrainingState, "save", save_and_stop):
        try:
            run()
        except Stopped:
            return
    raise AssertionError("it was not stopped")


def checkpoints(run):
    """Every tensor of every checkpoint that is kept."""
    dist.barrier()  # all ranks have written theirs
    return {
        f"{path.relative_to(run)} {name}": value
        for path in sorted(run.glob("checkpoint/*/*.safetensors"))
        for name, value in load_file(path).items()
    }


def history(run):
    epochs = json.loads((run / "history.json").read_text())["epochs"]
    return [(epoch["loss"], epoch["validation"]) for epoch in epochs]


def main(rank, ranks, folder):
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    return {
        "cases": {name: compare(case, rank) for name, case in CASES.items()},
        "diverged": diverges(rank),
        "stopped": stops_iterating(),
        "not_managed": not_with_managed_ids(rank),
        "runs": whole_runs(folder / "runs", rank),
    }
