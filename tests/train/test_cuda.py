"""Training and scoring on a real GPU: the CPU's numbers, and its own to the bit in every run."""

import warnings
from contextlib import closing

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.embeddings import torchrec_problem
from mmoe.parallel import ensure_process_group
from mmoe.run import RunDirectory
from mmoe.score import load_predictor, score_files
from mmoe.train import train_run
from mmoe.train.cuda import network_pass, on_device
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare
from mmoe.train.step import Step, StepProgram
from tests.runs import train_step

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
DRY = ("model.expert.dropout=0",)
RUNS = {
    "softmax": (),
    "top-k, capacity": ("model.gate.kind=top_k", "model.gate.k=2", "model.capacity.factor=0.5"),
    "PLE, switch": ("model.kind=ple", "model.gate.kind=switch"),
    "Adam on tables": ("training.embedding_optimizer.kind=adam",),
    "average, clipped": ("training.ema_decay=0.9", "training.gradient_clip=0.5"),
    "accumulated": ("training.accumulate_batches=3",),
}
needs_fbgemm = pytest.mark.skipif(
    torchrec_problem(GPU) is not None, reason=f"torchrec on a GPU: {torchrec_problem(GPU)}"
)
BACKENDS = ["plain", pytest.param("torchrec", marks=needs_fbgemm)]


@pytest.fixture
def steps(funnel_config, splits):
    """Losses of ten steps on a device, and the state after them."""

    def run(device, *overrides):
        ensure_process_group(device=device)
        config = config_from_dict(set_values(funnel_config, [*DRY, *overrides]))
        data = prepare(config, splits=splits)
        state = training_state(config, data, device)
        batches = on_device(data.train.epoch_batches(1, 0, 64), device)
        losses = []
        for _ in range(10):
            taken = [next(batches) for _ in range(config.training.accumulate_batches)]
            losses.append(train_step(state, taken, config, 100).losses)
            state.position.step += 1
        batches.close()
        return np.array(losses), state

    return run


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS)
def test_steps_equal_the_cpu(overrides, backend, steps):
    if backend == "torchrec" and any("adam" in each for each in overrides):
        pytest.skip("Adam on tables runs on plain")
    overrides = (*overrides, f"training.embedding_backend={backend}")

    ours, state = steps(GPU, *overrides)

    theirs, cpu = steps(CPU, *overrides)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    for name, weight in cpu.ranker.tables.table_weights().items():
        found = state.ranker.tables.table_weights()[name]
        assert found.device == GPU
        torch.testing.assert_close(found.cpu(), weight, rtol=0, atol=1e-3)


CAPTURED = {name: RUNS[name] for name in RUNS if name != "accumulated"} | {
    "balance loss": ("model.gate.kind=top_k", "model.gate.k=2", "model.gate.balance_loss=0.1"),
    "sigmoid": ("model.gate.kind=sigmoid", "model.gate.k=2", "model.gate.bias_speed=0.1"),
    "bf16": ("training.precision=bf16",),
}


@pytest.mark.parametrize("overrides", CAPTURED.values(), ids=CAPTURED)
def test_captured_passes_train_the_same_bits(overrides, funnel_config, splits):
    def run(capture):
        keys = [*DRY, *overrides, "training.batch_size=64", f"training.cuda_graphs={capture}"]
        config = config_from_dict(set_values(funnel_config, keys))
        data = prepare(config, splits=splits)
        state = training_state(config, data, GPU)
        state.train_mode()
        ran, said = network_pass(state.ranker, config, 640, print), []
        assert (ran is state.ranker) == (capture == "false")
        program = StepProgram(state, config, 100, network_pass=ran)
        with closing(on_device(data.train.epoch_batches(1, 0, 64), GPU)) as batches:
            for batch in batches:  # the last one is lower
                said.append(program.train(Step.of([batch])).found)
                state.position.step += 1
        return said, state.ranker.state_dict()

    said, weights = run("true")

    expected, expected_weights = run("false")
    assert said == expected
    assert weights.keys() == expected_weights.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, expected_weights[name]), name


def test_a_captured_run_is_the_same_twice(funnel_config, splits, tmp_path):
    keys = ["training.batch_size=256", "training.epochs=2", "model.expert.dropout=0.2"]
    config = config_from_dict(set_values(funnel_config, keys))

    def run(name):
        done = train_run(config, tmp_path / name, device="cuda", splits=splits)
        return done.metrics["tasks"]

    assert run("one") == run("two")


def test_bf16_steps_are_near_fp32(steps):
    narrow, _ = steps(GPU, "training.precision=bf16")
    wide, _ = steps(GPU)
    np.testing.assert_allclose(narrow, wide, atol=2e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_bits_in_every_run_and_after_an_interruption(
    backend, train, dies_after, tmp_path, assert_same
):
    # Dropout too: its state is in the checkpoint
    settings = (f"training.embedding_backend={backend}", "training.checkpoint_every_steps=5")
    train("one", *settings, device="cuda")
    train("two", *settings, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        train("resumed", *settings, device="cuda", reporter=dies_after(17))
    train("resumed", *settings, device="cuda", resume=True)

    assert_same(tmp_path / "one", tmp_path / "two")
    assert_same(tmp_path / "one", tmp_path / "resumed")


@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_goes_on_on_the_other_device(first, then, train, dies_after):
    expected = train("whole", *DRY, device=first).metrics["tasks"]["click"]["auc"]
    with pytest.raises(KeyboardInterrupt):
        train("run", *DRY, device=first, reporter=dies_after(17))

    finished = train("run", *DRY, device=then, resume=True)

    assert finished.metrics["tasks"]["click"]["auc"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("trained_on", ["cpu", "cuda"])
def test_scores_of_both_devices_agree(trained_on, train, splits, tmp_path):
    run = train("run", device=trained_on).directory.path
    pq.write_table(splits.test, tmp_path / "log.parquet")
    predictions = []
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.parquet"
        score_files(RunDirectory.open(run), tmp_path / "log.parquet", out, device=device)
        predictions.append(pq.read_table(out).to_pandas().to_numpy())
    np.testing.assert_allclose(predictions[0], predictions[1], rtol=0, atol=1e-5)


def test_a_score_does_not_depend_on_batch_mates(train, splits):
    settings = ("model.gate.kind=top_k", "model.gate.k=2")
    run = train("run", *settings, device="cuda").directory
    predictor, encoder, _ = load_predictor(run, "cuda")
    order = np.random.default_rng(0).permutation(splits.test.num_rows)

    def predict(table):
        return predictor.predict(EncodedData(features=encoder.encode(table, "log")))

    assert np.array_equal(predict(splits.test.take(order)), predict(splits.test)[order])


def test_the_host_waits_for_the_device_once_a_step(funnel_config, splits):
    """The plain backend and managed ids read sizes besides; numbers alone do not."""
    numbers = "features=[{kind: numeric, name: price, log: true}]"
    config = config_from_dict(set_values(funnel_config, [numbers]))
    data = prepare(config, splits=splits)
    state = training_state(config, data, GPU)
    batch = next(data.train.epoch_batches(1, 0, 64)).to(GPU)
    train_step(state, [batch], config, 100)  # the first one may set libraries up
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            train_step(state, [batch], config, 100)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in waits if "synchronizing" in str(w.message)]) == 1
