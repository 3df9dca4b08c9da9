"""A loss that is no number: the step, the task and the likeliest cause, each made to happen."""

import re

import numpy as np
import pyarrow as pa
import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.splits import Splits
from mmoe.models.ranker import Ranker
from mmoe.train import prepare, train_run
from mmoe.train.divergence import RecentSteps, likeliest_cause
from mmoe.train.fit import training_state
from mmoe.train.step import Step, StepProgram

LARGE = {
    "training.optimizer.learning_rate": "1e10",
    "training.embedding_optimizer.learning_rate": "1e10",
}


@pytest.fixture(name="diverge")
def _diverge(funnel_config, funnel_table, tmp_path):
    """The message of a run on the funnel with other columns, tasks and settings."""

    def run(*overrides, columns=None, tasks=None, features=()):
        table = funnel_table
        for name, values in (columns or {}).items():
            table = table.append_column(name, pa.array(values))
        raw = {**funnel_config, "features": [*funnel_config["features"], *features]}
        raw |= {"tasks": [*funnel_config["tasks"], *(tasks or [])]}
        config = config_from_dict(set_values(raw, overrides))
        splits = Splits(train=table[:3000], validation=table[3000:3500], test=table[3500:])
        with pytest.raises(ValueError, match=r"training step \d+: ") as raised:
            train_run(config, tmp_path / "run", splits=splits)
        return str(raised.value)

    return run


def test_a_label_out_of_range(diverge):
    spent = np.zeros(4000)
    spent[:8] = [3e30, -3e30] * 4  # of mean 0, where the tower begins
    said = diverge(
        columns={"spent": spent},
        tasks=[{"name": "spent", "label": "spent", "kind": "regression", "target": "none"}],
    )
    assert re.search(r"training step \d+: the loss of task spent is (inf|nan); likeliest", said)
    assert (
        "likeliest cause: a label of task spent is 3e+30 in this step or the two before; " in said
    )
    assert "clip the label or take its log1p" in said


def test_a_number_far_from_all_others(diverge):
    huge = np.random.default_rng(0).normal(size=4000)
    huge[::50] = 1e30
    said = diverge(
        "training.optimizer.learning_rate=1000",
        columns={"huge": huge},
        features=[{"kind": "numeric", "name": "huge", "standardise": False}],
        tasks=[{"name": "price", "label": "price", "kind": "regression"}],
    )  # fmt: skip
    assert "likeliest cause: feature huge is 1e+09 after scaling in this step" in said
    assert "set log: true on huge" in said


def test_a_learning_rate_that_is_too_high(diverge):
    said = diverge(*(f"{key}={value}" for key, value in LARGE.items()))
    assert re.search(
        r"training step \d+: the loss .* likeliest cause: a learning rate \(1e\+10\)", said
    )
    assert "lower training.optimizer.learning_rate" in said


def test_a_task_whose_loss_had_been_growing():
    from mmoe.train.divergence import _growth

    config = config_from_dict({
        "features": [{"kind": "numeric", "name": "age"}],
        "tasks": [{"name": "click", "label": "click"}, {"name": "buy", "label": "buy"}],
    })  # fmt: skip
    cause = _growth(config, [[0.7, 0.5], [0.6, 0.5], [0.7, 4.0], [0.6, 80.0]])
    assert cause is not None
    assert "the loss of buy went from 0.5 to 80 within 4 steps" in cause.what
    assert _growth(config, [[0.7, 0.5], [0.6, 0.6], [0.7, 0.4]]) is None
    assert _growth(config, []) is None


@pytest.fixture(name="program")
def _program(funnel_config, splits):
    """A training state, and its first batch of rows."""

    def make(*overrides):
        config = config_from_dict(set_values(funnel_config, overrides))
        prepared = prepare(config, splits=splits)
        assert prepared.train.held is not None
        state = training_state(config, prepared)
        state.ranker.train()
        return StepProgram(state, config, 100), prepared.train.held.batch(slice(0, 64))

    return make


def test_weights_that_were_no_numbers_before(program):
    one, batch = program()
    next(one.state.ranker.network.parameters()).data.view(-1)[0] = torch.nan
    with pytest.raises(
        ValueError, match=r"training step 1: .*cause: weights were NaN or infinite b"
    ):
        one.train(Step.of([batch]))
    other, batch = program()
    other.train(Step.of([batch]))
    next(other.state.ranker.network.parameters()).data.view(-1)[0] = torch.nan
    with pytest.raises(
        ValueError, match=r"cause: a learning rate .* the update before made weights"
    ):
        other.train(Step.of([batch]))


def test_numbers_that_only_bf16_cannot_hold(program, monkeypatch):
    """fp32 holds 3.4e38, bf16 some thousandths less."""
    one, batch = program("training.precision=bf16")
    forward = Ranker.forward

    def overflows(self, *rows, **keywords):
        output = forward(self, *rows, **keywords)
        large = torch.full_like(output.logits_BT, 3.4e38)
        if torch.is_autocast_enabled("cpu"):
            large = large.bfloat16().float()
        return output._replace(logits_BT=output.logits_BT * 0 + large)

    monkeypatch.setattr(Ranker, "forward", overflows)
    with pytest.raises(
        ValueError, match=r"likeliest cause: training.precision: bf16.*set training.p"
    ):
        one.train(Step.of([batch]))


def test_nothing_is_made_up(program):
    one, batch = program()
    recent = RecentSteps()
    recent.batches.append([batch])
    found = likeliest_cause(one.state.ranker, [(batch, None)], [], one.config, recent, alone=True)
    assert found is None
