"""Several batches that count as one: the same gradients, the same updates, resumed to the bit."""

import json

import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.batch import Batch
from mmoe.models.build import build_ranker
from mmoe.parallel import ensure_process_group
from mmoe.train.prepare import prepare
from tests.train.one_step import one_step

# Tables move by exactly the gradient; losses of the gates are not linear in the rows
SETTINGS = (
    "model.expert.dropout=0",
    "training.embedding_optimizer.kind=sgd",
    "training.embedding_optimizer.learning_rate=1",
)


@pytest.fixture(name="gradients")
def _gradients(funnel_config, splits):
    """Dense gradients and moved tables after some rows in batches of the sizes given."""

    def compute(sizes, *overrides):
        config = config_from_dict(set_values(funnel_config, [*SETTINGS, *overrides]))
        data = prepare(config, splits=splits)
        torch.manual_seed(0)
        ranker = build_ranker(config, data.encoder).train()
        assert data.train.held is not None
        batches: list[Batch] = []
        start = 100
        for size in sizes:
            batches.append(data.train.held.batch(slice(start, start + size)))
            start += size
        return one_step(ranker, batches, config)

    return compute


@pytest.mark.parametrize("backend", ["plain", pytest.param("torchrec", marks=pytest.mark.torchrec)])
@pytest.mark.parametrize("model", ["mmoe", "esmm"])
def test_batches_together_have_the_gradient_of_one(gradients, backend, model):
    if backend == "torchrec":
        ensure_process_group()
    settings = (f"model.kind={model}", f"training.embedding_backend={backend}")
    one, expected = gradients([300], *settings)
    # Unequal in rows, and in how many of them were clicked
    several, found = gradients([120, 7, 1, 172], *settings)
    torch.testing.assert_close(several.losses, one.losses)
    assert several.rows == pytest.approx(one.rows)
    # ESMM's second loss is over all rows, so that is what its mean over an epoch counts by
    assert one.rows[0] == 300 and (one.rows[1] == 300) == (model == "esmm")
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_a_run_is_that_of_larger_batches(train, tmp_path):
    settings = (*SETTINGS, "training.optimizer.learning_rate=1e-4")
    large = train("large", "training.batch_size=512", *settings)
    small = train("small", "training.batch_size=128", "training.accumulate_batches=4", *settings)
    histories = [
        json.loads((tmp_path / name / "history.json").read_text())["epochs"]
        for name in ("large", "small")
    ]
    # 3,000 rows: five steps of 512 and one of 440, in 24 batches of which the last step has four
    assert [entry["step"] for entry in histories[1]] == [6, 12, 18]
    assert [entry["step"] for entry in histories[0]] == [6, 12, 18]
    for one, two in zip(*histories, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
    for task, metrics in large.metrics["tasks"].items():
        assert small.metrics["tasks"][task]["logloss"] == pytest.approx(
            metrics["logloss"], rel=1e-3
        )


def test_batches_without_ids_go_together(train, funnel_config):
    numeric = [feature for feature in funnel_config["features"] if feature["kind"] == "numeric"]
    result = train(
        "run", f"features={numeric}", "training.accumulate_batches=4", "training.epochs=1"
    )
    assert set(result.metrics["tasks"]) == {task["name"] for task in funnel_config["tasks"]}


def test_the_last_step_of_an_epoch_may_have_fewer(train, tmp_path):
    train("run", "training.accumulate_batches=3", "training.epochs=2")
    history = json.loads((tmp_path / "run" / "history.json").read_text())["epochs"]
    assert [entry["step"] for entry in history] == [3, 6], "8 batches: 3, 3 and 2"


@pytest.mark.parametrize("after", [1, 4, 7])
def test_resume_continues_bit_identically(train, tmp_path, after, assert_same, dies_after):
    settings = (
        "training.accumulate_batches=3",
        "training.checkpoint_every_steps=1",
        "training.embedding_optimizer.kind=adam",
        "training.embedding_optimizer.learning_rate=0.01",
    )
    train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(after))
    train("broken", *settings, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
