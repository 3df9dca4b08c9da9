"""`Predictor`: one row or many, one thread or many, and nothing of the caller's is touched."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.splits import Splits
from mmoe.embeddings import torchrec_problem
from mmoe.models.build import build_ranker
from mmoe.score import Predictor, load_predictor
from mmoe.train import train_run
from tests.needs_kernels import needs_kernels

# Everything of a model that training would change or draw
UNEVEN = ("model.expert={hidden: [17, 9], activation: silu, norm: batch, dropout: 0.3}",)
MODELS = {
    "mmoe": UNEVEN,
    "ple": ("model.kind=ple", "model.expert={hidden: [13, 11], activation: swiglu, norm: layer}"),
    "cgc, grouped, bf16": (
        "model.kind=cgc",
        "model.gate={kind: top_k, k: 2, hidden: [9]}",
        "model.expert={hidden: [33, 7], activation: gelu}",
        "model.execution=grouped",
        "training.precision=bf16",
    ),
    "cosine, grouped": ("model.gate={kind: cosine, k: 1}", "model.execution=grouped"),
    "dense, bf16": ("model.execution=dense", "training.precision=bf16"),
    "dselect_k": (
        "model.gate={kind: dselect_k, k: 2}",
        "model.tower={hidden: [5], activation: silu}",
    ),
    "sigmoid": ("model.gate={kind: sigmoid, k: 2}", "model.num_experts=8"),
    "esmm": ("model.kind=esmm",),
    "shared_bottom": ("model.kind=shared_bottom",),
    "single_task": ("model.kind=single_task", "model.tower={hidden: []}"),
}


@pytest.fixture(
    scope="module",
    name="run",
    params=["plain", pytest.param("torchrec", marks=pytest.mark.torchrec)],
)
def _run(request, funnel_config, funnel_table, tmp_path_factory):
    """With dropout and batch norms; on TorchRec one table is trained in fp16."""
    changes = ["training.epochs=1", f"training.embedding_backend={request.param}", *UNEVEN]
    if request.param == "torchrec":
        changes.append("parallel.per_table={item: {precision: fp16}}")
    return _train(funnel_config, changes, funnel_table, tmp_path_factory.mktemp("run") / "run")


def _train(raw, changes, table, folder):
    splits = Splits(train=table[:2000], validation=table[2000:2300], test=table[2300:], origin="x")
    config = config_from_dict(set_values(raw, changes))
    return train_run(config, folder, splits=splits).directory


def _loaded(run, table):
    predictor, encoder, _ = load_predictor(run, "cpu")
    return predictor, EncodedData(features=encoder.encode(table, "log"))


def _state(predictor):
    return {name: tensor.clone() for name, tensor in predictor.ranker.state_dict().items()}


def test_a_loaded_model_is_in_evaluation_mode(run, funnel_table):
    predictor, data = _loaded(run, funnel_table[:10])
    assert not any(module.training for module in predictor.ranker.modules())
    predictor.predict(data)
    assert not any(module.training for module in predictor.ranker.modules())


def test_eight_threads_get_the_bits_of_one_and_leave_the_model_alone(run, funnel_table):
    predictor, encoder, _ = load_predictor(run, "cpu")
    table = funnel_table[:600]
    expected_NT = predictor.predict(EncodedData(features=encoder.encode(table, "log")))
    before = _state(predictor)

    def score(number):
        start, rows = number * 37 % 500, (1, 3, 64, 100)[number % 4]
        features = encoder.encode(table[start : start + rows], "log")
        predictions_NT = predictor.predict(EncodedData(features=features))
        return np.array_equal(predictions_NT, expected_NT[start : start + rows])

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(score, range(200)))
    after = _state(predictor)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_scores_are_those_that_were_measured_when_the_run_was_trained(
    funnel_config, funnel_table, tmp_path
):
    """Tables to score with give the bits of those that were trained."""
    seen = []
    changes = ["training.epochs=1", *UNEVEN]
    if torchrec_problem() is None:
        changes += ["training.embedding_backend=torchrec"]
    splits = Splits(
        train=funnel_table[:1000],
        validation=funnel_table[1000:1200],
        test=funnel_table[1200:],
        origin="x",
    )
    config = config_from_dict(set_values(funnel_config, changes))
    finished = train_run(
        config, tmp_path / "run", splits=splits, on_test=lambda p, _: seen.append(p)
    )
    predictor, data = _loaded(finished.directory, splits.test)
    assert np.array_equal(predictor.predict(data), seen[0])


@pytest.fixture(name="untrained")
def _untrained(funnel_config, funnel_table):
    """A model of some changes, and encoded rows."""

    def build(changes):
        config = config_from_dict(set_values(funnel_config, changes))
        encoder = FeatureEncoder.fit(config, funnel_table, "log")
        torch.manual_seed(1)
        predictor = Predictor(build_ranker(config, encoder), config)
        return predictor, EncodedData(features=encoder.encode(funnel_table[:520], "log"))

    return build


@needs_kernels
@pytest.mark.parametrize("name", MODELS)
def test_a_rows_bits_do_not_depend_on_how_many_are_scored(untrained, name):
    predictor, data = untrained(MODELS[name])
    predictor.any_height = False
    expected_NT = predictor.predict(data)  # at the height of eval_batch_size, as before
    predictor.any_height = True
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            for rows in (1, 5, 64, 65, 449):
                for start in (0, 71):
                    found_NT = predictor.predict(data.rows(start, start + rows))
                    assert np.array_equal(found_NT, expected_NT[start : start + rows]), rows
        finally:
            torch.set_num_threads(1)


@needs_kernels
def test_few_rows_do_not_cost_a_whole_batch(untrained):
    predictor, data = untrained(["training.eval_batch_size=200"])
    heights = []
    predictor.ranker.network.register_forward_pre_hook(
        lambda _, inputs: heights.append(len(inputs[0]))
    )
    for rows in (1, 64, 65, 200, 430):
        predictor.predict(data.rows(0, rows))
    assert heights == [4, 64, 68, 200, 200, 200, 32]
    predictor.any_height = False  # of products whose bits depend on the height
    heights.clear()
    predictor.predict(data.rows(0, 1))
    assert heights == [256]


def test_a_model_that_is_trained_on_is_refused(untrained):
    predictor, data = untrained(["training.eval_batch_size=64"])
    predictor.ranker.train()
    with pytest.raises(
        ValueError, match=r"ranker: expected a model in evaluation mode.*ranker.eval"
    ):
        predictor.predict(data)
    predictor.ranker.eval()
    predictor.predict(data)


@pytest.fixture(name="no_group")
def _no_group():
    """Whatever tests before this one have made; and none is left."""

    def leave():
        if dist.is_initialized():
            dist.destroy_process_group()

    leave()
    yield
    leave()


def _own_group(folder):
    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def test_the_default_process_group_is_the_callers(
    run, funnel_config, funnel_table, tmp_path, no_group
):
    predictor, data = _loaded(run, funnel_table[:100])
    expected_NT = predictor.predict(data)
    backend = "plain" if torchrec_problem() else "torchrec"
    changes = ["training.epochs=1", f"training.embedding_backend={backend}"]
    _train(funnel_config, changes, funnel_table, tmp_path / "before")
    assert not dist.is_initialized()

    _own_group(tmp_path)
    assert np.array_equal(predictor.predict(data), expected_NT)
    again, _ = _loaded(run, funnel_table[:1])
    assert np.array_equal(again.predict(data), expected_NT)
    _train(funnel_config, changes, funnel_table, tmp_path / "within")
    assert dist.is_initialized()


def test_ranks_that_meet_after_loading_are_not_asked(run, funnel_table, no_group):
    predictor, data = _loaded(run, funnel_table[:100])
    expected_NT = predictor.predict(data)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    assert np.array_equal(predictor.predict(data), expected_NT)
