"""Several batches that count as one: the same gradients, the same updates, resumed to the bit."""

import json

import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.batch import Batch
from mmoe.models.build import build_ranker
from mmoe.parallel import ensure_process_group
from mmoe.train.prepare import prepare
from tests.runs import one_step

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


@pytest.mark.parametrize(
    ("model", "backend"),
    [("esmm", "plain"), pytest.param("mmoe", "torchrec", marks=pytest.mark.torchrec)],
)
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


def test_batches_without_ids_go_together(train, funnel_config):
    numeric = [feature for feature in funnel_config["features"] if feature["kind"] == "numeric"]
    result = train(
        "run", f"features={numeric}", "training.accumulate_batches=4", "training.epochs=1"
    )
    assert set(result.metrics["tasks"]) == {task["name"] for task in funnel_config["tasks"]}


def test_resume_continues_bit_identically(train, tmp_path, assert_same, dies_after):
    """8 batches are steps of 3, 3 and 2."""
    settings = (
        "training.accumulate_batches=3",
        "training.checkpoint_every_steps=1",
        "training.embedding_optimizer.kind=adam",
        "training.embedding_optimizer.learning_rate=0.01",
        "training.epochs=2",
    )
    train("whole", *settings)
    history = json.loads((tmp_path / "whole" / "history.json").read_text())["epochs"]
    assert [entry["step"] for entry in history] == [3, 6]
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(4))
    train("broken", *settings, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
