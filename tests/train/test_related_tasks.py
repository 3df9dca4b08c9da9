"""Runs whose tasks come after one another: trained, resumed, continued, scored."""

from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import mmoe
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.splits import Splits
from mmoe.models.build import build_ranker
from mmoe.tasks.masked_loss import TaskLosses
from mmoe.train import train_run
from mmoe.train.prepare import prepare
from mmoe.train.step import Step, backward, forward
from mmoe.train.warm_start import WarmStart

BUY = "tasks.buy.after=click"
ENTIRE = (BUY, "tasks.buy.kind=entire_space")
PLAIN = (BUY, "tasks.buy.observed_when=null")
SETTINGS = {
    "ips": (*ENTIRE, "tasks.buy.counterfactual=ips"),
    "dr": (*ENTIRE, "tasks.buy.counterfactual=dr", "tasks.buy.counterfactual_weight=0.5"),
    "aitm": (*PLAIN, "model.transfer=aitm"),
    "aitm, given a click": (BUY, "model.transfer={kind: aitm, dim: 4}"),
    "aitm and dr": (*ENTIRE, "tasks.buy.counterfactual=dr", "model.transfer=aitm"),
    "dbmtl": (*PLAIN, "model.transfer=dbmtl"),
    "dbmtl and ips": (*ENTIRE, "tasks.buy.counterfactual=ips", "model.transfer=dbmtl"),
}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ("aitm and dr", ("model.kind=ple", "model.gate.kind=top_k", "training.ema_decay=0.9")),
        ("dbmtl and ips", ("model.kind=cgc", "training.precision=bf16", "model.wide=true")),
        ("aitm and dr", ("model.kind=single_task", "model.tower={hidden: []}")),
    ],
)
def test_they_go_with_other_settings(train, mmoe, settings, more):
    run = train("run", "training.epochs=1", *SETTINGS[settings], *more)
    for task in ("click", "buy"):
        assert np.isfinite(run.metrics["tasks"][task]["logloss"])
    if "model.kind=ple" in more:
        assert mmoe("report", run.directory.path)[0] == 0
        page = (run.directory.path / "report.html").read_text()
        assert "AITM: buy after click (ESCM²-DR)" in page


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_batches_together_have_the_gradient_of_one(funnel_config, splits, settings):
    def compute(sizes):
        config = config_from_dict(set_values(funnel_config, ["model.expert.dropout=0", *settings]))
        data = prepare(config, splits=splits)
        torch.manual_seed(0)
        ranker = build_ranker(config, data.encoder).train()
        starts = np.cumsum([100, *sizes])
        assert data.train.held is not None
        step = Step.of([data.train.held.batch(slice(a, b)) for a, b in pairwise(starts)])
        forward(ranker, step, TaskLosses(config.trained_tasks))
        losses = backward(step, TaskLosses(config.trained_tasks))
        return losses, {name: w.grad for name, w in ranker.network.named_parameters()}

    (one, expected), (several, found) = compute([300]), compute([120, 7, 1, 172])
    torch.testing.assert_close(several.losses, one.losses)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)
        assert found[name].any() or "logit.bias" in name, f"{name} learns nothing"


def test_after_is_observed_when_for_the_entire_space(train, tmp_path, assert_same):
    short = ("training.epochs=1", "tasks.buy.kind=entire_space")
    train("before", *short)
    train("after", *short, BUY, "tasks.buy.observed_when=null")
    assert_same(tmp_path / "before", tmp_path / "after")


def _continued(train, tmp_path, before, after, rate=1e-12):
    train("before", "training.epochs=1", *before)
    start = WarmStart(tmp_path / "before")
    slow = [
        f"training.{part}.learning_rate={rate}" for part in ("optimizer", "embedding_optimizer")
    ]
    train("after", "training.epochs=1", *after, *slow, warm_start=start)
    return mmoe.load(tmp_path / "before"), mmoe.load(tmp_path / "after")


def test_tasks_that_move_and_come_keep_their_relations(train, tmp_path, splits, weights):
    """A task in front of both, which buy comes after as well: read with weights of zero."""
    settings = ("model.transfer=dbmtl",)
    cheap = '{name: cheap, label: "price < 1"}'
    click = "{name: click, label: click}"
    first = f"tasks=[{click}, {{name: buy, label: buy, after: click}}]"
    second = f"tasks=[{cheap}, {{name: buy, label: buy, after: [cheap, click]}}, {click}]"
    before, after = _continued(train, tmp_path, (*settings, first), (*settings, second))
    said, says = (np.asarray(m.predict(splits.test)["pred_buy"]) for m in (before, after))
    np.testing.assert_allclose(says, said, rtol=1e-4)
    name = "network.transfer.tasks.1.layers.0.weight"
    old, new = weights(tmp_path / "before")[name], weights(tmp_path / "after")[name]
    torch.testing.assert_close(new[:, :8], old[:, :8], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(new[:, 16:], old[:, 8:], rtol=1e-4, atol=1e-6)


def test_an_imputation_tower_may_come_and_go(train, tmp_path, splits):
    before, after = _continued(train, tmp_path, SETTINGS["ips"], SETTINGS["dr"])
    said, says = (np.asarray(m.predict(splits.test)["pred_buy"]) for m in (before, after))
    np.testing.assert_allclose(says, said, rtol=1e-4)


def test_labels_that_are_missing_without_the_event_are_not_compared(
    funnel_config, funnel_table, tmp_path
):
    bought = pc.if_else(pc.equal(funnel_table["click"], 1), funnel_table["buy"], None)
    table = funnel_table.set_column(funnel_table.schema.get_field_index("buy"), "buy", bought)
    splits = Splits(train=table[:3000], validation=table[3000:3500], test=table[3500:])
    config = config_from_dict(set_values(funnel_config, ["training.epochs=1", *SETTINGS["aitm"]]))
    with pytest.raises(ValueError, match=r"task 'buy' has labels only where 'click' happened"):
        train_run(config, tmp_path / "run", splits=splits)
    given = set_values(funnel_config, ["training.epochs=1", *SETTINGS["aitm, given a click"]])
    train_run(config_from_dict(given), tmp_path / "given", splits=splits)


def test_another_transfer_continues_nothing(train, tmp_path):
    train("before", "training.epochs=1", *SETTINGS["aitm"])
    with pytest.raises(ValueError, match=r"model.transfer.kind is 'aitm' there and 'dbmtl' here"):
        train("after", *SETTINGS["dbmtl"], warm_start=WarmStart(tmp_path / "before"))
