"""Training and scoring on another device, without one: every tensor of a step has to be moved.

On an emulated GPU (see `emulated_gpu.py`) steps and scores equal the CPU's, and the host waits for
the device once a step. The same on a real one is in test_cuda.py.
"""

from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.config import config_from_dict, set_values
from mmoe.predictor import Predictor
from mmoe.run import RunDirectory
from mmoe.run.console import SilentReporter
from mmoe.score import load_predictor
from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.train import WarmStart, evaluate_run
from mmoe.train.fit import training_state
from mmoe.train.fit_wide import fit_wide
from mmoe.train.prepare import prepare
from tests.runs import train_step
from tests.train.emulated_gpu import GPU, emulated_gpu

CPU = torch.device("cpu")
DRY = ("model.expert.dropout=0", "training.batch_size=64")
RUNS = {
    "picks, capacity, Adam on tables": (
        "model.gate.kind=top_k",
        "model.gate.k=2",
        "model.capacity.factor=0.5",
        "training.embedding_optimizer.kind=adam",
    ),
    "PLE, switch": ("model.kind=ple", "model.gate.kind=switch"),
    "noisy": ("model.gate.kind=noisy_top_k", "model.gate.k=1", "model.execution=grouped"),
    "cosine, batch norm": (
        "model.gate.kind=cosine",
        "model.gate.k=2",
        "model.expert.norm=batch",
        "model.tower.activation=silu",
    ),
    "DSelect-k, layer norm": (
        "model.gate.kind=dselect_k",
        "model.expert.norm=layer",
        "model.expert.activation=swiglu",
    ),
    "ESMM, accumulated": ("model.kind=esmm", "training.accumulate_batches=3"),
    "average, clipped, a schedule": (
        "training.ema_decay=0.9",
        "training.gradient_clip=0.5",
        "training.optimizer.kind=adamw",
        "training.optimizer.warmup_steps=2",
        "training.optimizer.weight_decay=0.01",
    ),
}


@pytest.fixture
def prepared(funnel_config, splits):
    """The config with changes, and its data."""

    def make(*overrides: str):
        config = config_from_dict(set_values(funnel_config, [*DRY, *overrides]))
        return config, prepare(config, splits=splits)

    return make


@pytest.fixture
def on_gpu(monkeypatch):
    """Whole runs go to the emulated GPU while this is entered."""

    @contextmanager
    def enter():
        with emulated_gpu(monkeypatch), monkeypatch.context() as patch:
            patch.setattr("mmoe.train.fit.resolve_device", lambda *_: GPU)
            patch.setattr("mmoe.train.loop.on_device", moved)
            yield

    return enter


def moved(batches, device):
    """As `on_device`, whose streams only CUDA has."""
    try:
        for batch in batches:
            yield batch.to(device)
    finally:
        batches.close()


def take_steps(config, data, state, steps=3):
    """The losses of some steps."""
    batches, each = data.train.epoch_batches(1, 0, 64), config.training.accumulate_batches
    losses = []
    for _ in range(steps):
        taken = [next(batches).to(state.ranker.device) for _ in range(each)]
        losses.append(train_step(state, taken, config, 100))
        state.position.step += 1
    batches.close()
    return losses


def scores(config, data, state):
    """Predictions, and what the gates did."""
    state.ranker.network = state.scoring_network
    gates = GateStatistics()
    predictor = Predictor(state.ranker, config)
    chunks = predictor.predict_chunks(data.test, on_gates=gates.update)
    return np.concatenate([found_NP for _, found_NP in chunks]), gates.summary()


def saved(state, folder):
    """The tensors of a checkpoint."""
    checkpoints = CheckpointFolder(folder)
    with CheckpointSaver(checkpoints) as saver:
        state.save(saver, best=True)
    return {**checkpoints.model("latest"), **checkpoints.training()}


@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS)
def test_a_step_on_another_device_is_that_of_the_cpu(overrides, prepared, tmp_path, monkeypatch):
    config, data = prepared(*overrides)
    mine = training_state(config, data, CPU)
    expected = take_steps(config, data, mine), saved(mine, tmp_path / "cpu")
    expected_scores = scores(config, data, mine)

    with emulated_gpu(monkeypatch):
        state = training_state(config, data, GPU)
        found = take_steps(config, data, state), saved(state, tmp_path / "gpu")
        found_scores = scores(config, data, state)

    assert state.ranker.device == GPU
    for one, other in zip(found[0], expected[0], strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-5)
        assert (one.rows, one.dropped) == (other.rows, other.dropped)
    assert found[1].keys() == expected[1].keys()
    batch_norms = "model.expert.norm=batch" in overrides
    for name, tensor in found[1].items():
        # A bias before a batch norm has no gradient but by rounding, of which Adam makes a step
        moved = ".experts.biases." in name or name.endswith("running_mean")
        atol = 0.02 if batch_norms and moved else 1e-5
        torch.testing.assert_close(tensor, expected[1][name], rtol=1e-3, atol=atol, msg=name)
    close = 1e-3 if batch_norms else 1e-5
    assert found_scores[0] == pytest.approx(expected_scores[0], abs=close)
    assert [level["samples"] for level in found_scores[1]] == [
        level["samples"] for level in expected_scores[1]
    ]


def test_a_wide_part_on_another_device_is_that_of_the_cpu(prepared, monkeypatch):
    config, data = prepared("model.wide=true")
    plain, _ = prepared()

    def run(device):
        state = training_state(config, data, device)
        fit_wide(state.ranker.wide, config, data, SilentReporter())
        return take_steps(config, data, state), scores(config, data, state)

    (expected, expected_scores), waited = run(CPU), {}
    with emulated_gpu(monkeypatch) as waits:
        found, found_scores = run(GPU)
        for one in (config, plain):
            state = training_state(one, data, GPU)
            batch = next(data.train.epoch_batches(1, 0, 64)).to(GPU)
            waits.clear()
            train_step(state, [batch], one, 100)
            waited[one.model.wide] = list(waits)
    assert found[-1].losses == pytest.approx(expected[-1].losses, rel=1e-5)
    assert found_scores[0] == pytest.approx(expected_scores[0], abs=1e-5)
    assert waited[True] == waited[False], "the host waits for nothing more"


NUMBERS = ("features=[{kind: numeric, name: price, log: true}]", "model.gate={kind: top_k, k: 2}")


@pytest.mark.parametrize(("overrides", "more"), [(NUMBERS, 0), ((), 1)], ids=["numbers", "tables"])
def test_the_host_waits_for_a_device_once_a_step(prepared, monkeypatch, overrides, more):
    """Tables of the plain backend read sizes too, once each."""
    config, data = prepared(*overrides)
    with emulated_gpu(monkeypatch) as waits:
        state = training_state(config, data, GPU)
        batch = next(data.train.epoch_batches(1, 0, 64)).to(GPU)
        train_step(state, [batch], config, 100)
        waits.clear()
        train_step(state, [batch], config, 100)
    tables = ["_coalesce"] * len(data.encoder.tables) if more else []
    assert waits == ["tolist"] * (1 + more) + tables


LONG = (
    "training.epochs=2",
    "training.batch_size=500",
    "model.expert.dropout=0",
    "training.checkpoint_every_steps=3",
)


def near(one, other):
    """Two runs' metrics, but for the last digits."""
    for task, values in other.items():
        for name, value in values.items():
            assert one[task][name] == pytest.approx(value, abs=1e-4), (task, name)


def test_a_run_trained_on_one_device_is_evaluated_and_resumed_on_another(
    train, on_gpu, dies_after, splits, tmp_path, assert_same
):
    cpu = train("cpu", *LONG)
    with on_gpu():
        gpu = train("gpu", *LONG)
        with pytest.raises(KeyboardInterrupt):
            train("resumed", *LONG, reporter=dies_after(7))
        train("resumed", *LONG, resume=True)
        with pytest.raises(KeyboardInterrupt):
            train("moved", *LONG, reporter=dies_after(7))
    moved_back = train("moved", *LONG, resume=True)

    assert_same(tmp_path / "gpu", tmp_path / "resumed")
    near(gpu.metrics["tasks"], cpu.metrics["tasks"])
    near(moved_back.metrics["tasks"], cpu.metrics["tasks"])
    pq.write_table(splits.test, tmp_path / "test.parquet")
    test = evaluate_run(RunDirectory.open(tmp_path / "gpu"), tmp_path / "test.parquet")
    near(test["tasks"], gpu.metrics["tasks"])


def test_narrow_tables_and_warm_starts_of_another_device(
    train, on_gpu, splits, tmp_path, monkeypatch
):
    train("run", *LONG)
    more = (*LONG, "model.num_experts=5", "training.ema_decay=0.9", "training.epochs=1")
    warm = {"warm_start": WarmStart(tmp_path / "run", "copy")}
    expected = train("warm on a CPU", *more, **warm).metrics["tasks"]
    with on_gpu():
        near(train("warm", *more, **warm).metrics["tasks"], expected)
    pq.write_table(splits.test, tmp_path / "test.parquet")
    run, log = RunDirectory.open(tmp_path / "run"), tmp_path / "test.parquet"
    for precision in ("int8", "fp16"):
        cpu = evaluate_run(run, log, table_precision=precision)
        with on_gpu(), monkeypatch.context() as patch:
            patch.setattr("mmoe.predictor.resolve_device", lambda *_: GPU)
            near(evaluate_run(run, log, table_precision=precision)["tasks"], cpu["tasks"])


@pytest.mark.torchrec
def test_managed_ids_get_rows_of_tables_on_another_device(train, on_gpu, tmp_path, weights):
    managed = (
        "features=[{kind: categorical, name: user, encoding: managed, rows: 20, evict: lru, "
        "evict_every: 2}, {kind: numeric, name: price, log: true}]",
        *LONG,
    )
    cpu = train("cpu", *managed)

    with on_gpu():
        gpu = train("gpu", *managed)

    near(gpu.metrics["tasks"], cpu.metrics["tasks"])
    mine, theirs = weights(tmp_path / "gpu"), weights(tmp_path / "cpu")
    owners = [name for name in theirs if name.startswith("ids.")]
    assert owners and all(torch.equal(mine[name], theirs[name]) for name in owners)
    assert mine["tables.user"].isfinite().all()
    _, encoder, _ = load_predictor(RunDirectory.open(tmp_path / "gpu"))
    assert encoder.tables[0].managed is not None
