"""Training and scoring on another device, without one: every tensor of a step has to be moved.

On an emulated GPU (see `emulated_gpu.py`) steps and scores equal the CPU's, and the host waits for
the device once a step. The same on a real one is in test_cuda.py.
"""

import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.score.checkpoint import CheckpointFolder
from mmoe.score.predictor import Predictor
from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.train.fit import _training_state
from mmoe.train.prepare import prepare
from mmoe.train.step import train_step
from tests.train.emulated_gpu import GPU, emulated_gpu

CPU = torch.device("cpu")
DRY = ("model.expert.dropout=0", "training.batch_size=64")
RUNS = {
    "softmax": (),
    "picks, capacity, Adam on tables": (
        "model.gate.kind=top_k",
        "model.gate.k=2",
        "model.capacity.factor=0.5",
        "training.embedding_optimizer.kind=adam",
    ),
    "PLE, switch": ("model.kind=ple", "model.gate.kind=switch"),
    "sigmoid": ("model.gate.kind=sigmoid", "model.gate.k=2"),
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
    "single task": ("model.kind=single_task", "training.embedding_optimizer.kind=adagrad"),
}


@pytest.fixture
def prepared(funnel_config, splits):
    """The config with changes, and its data."""

    def make(*overrides: str):
        config = config_from_dict(set_values(funnel_config, [*DRY, *overrides]))
        return config, prepare(config, splits=splits)

    return make


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
    return predictor.predict(data.test, on_gates=gates.update), gates.summary()


def saved(state, folder):
    """The tensors of a checkpoint."""
    checkpoints = CheckpointFolder(folder)
    state.save(checkpoints, best=True)
    return {**checkpoints.model("latest"), **checkpoints.training()}


@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS)
def test_a_step_on_another_device_is_that_of_the_cpu(overrides, prepared, tmp_path, monkeypatch):
    config, data = prepared(*overrides)
    mine = _training_state(config, data, CPU)
    expected = take_steps(config, data, mine), saved(mine, tmp_path / "cpu")
    expected_scores = scores(config, data, mine)

    with emulated_gpu(monkeypatch):
        state = _training_state(config, data, GPU)
        found = take_steps(config, data, state), saved(state, tmp_path / "gpu")
        found_scores = scores(config, data, state)

    assert state.ranker.device == GPU
    for one, other in zip(found[0], expected[0], strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-5)
        assert (one.rows, one.dropped) == (other.rows, other.dropped)
    assert found[1].keys() == expected[1].keys()
    for name, tensor in found[1].items():
        torch.testing.assert_close(tensor, expected[1][name], rtol=1e-3, atol=1e-5, msg=name)
    assert found_scores[0] == pytest.approx(expected_scores[0], abs=1e-5)
    assert [level["samples"] for level in found_scores[1]] == [
        level["samples"] for level in expected_scores[1]
    ]


def test_the_host_waits_for_a_device_once_a_step(prepared, monkeypatch):
    """With numbers alone; tables of the plain backend read sizes too (`…_once_a_table`)."""
    numbers = "features=[{kind: numeric, name: price, log: true}]"
    config, data = prepared(numbers, "model.gate.kind=top_k", "model.gate.k=2")
    with emulated_gpu(monkeypatch) as waits:
        state = _training_state(config, data, GPU)
        batch = next(data.train.epoch_batches(1, 0, 64)).to(GPU)
        train_step(state, [batch], config, 100)
        waits.clear()

        train_step(state, [batch], config, 100)

    assert waits == ["tolist"]


def test_and_once_a_table_with_the_plain_backend(prepared, monkeypatch):
    config, data = prepared()
    with emulated_gpu(monkeypatch) as waits:
        state = _training_state(config, data, GPU)
        batch = next(data.train.epoch_batches(1, 0, 64)).to(GPU)
        train_step(state, [batch], config, 100)
        waits.clear()

        train_step(state, [batch], config, 100)

    tables = len(data.encoder.tables)
    assert waits == ["tolist", "tolist", *["_coalesce"] * tables]
