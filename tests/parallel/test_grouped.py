"""Losses within groups over ranks: a group is whole on one, so they train as one process does."""

import json

import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.train import train_run
from tests.ranks import launch


@pytest.mark.parametrize("kinds", [("jrc", "bpr"), ("softmax", "jrc")], ids="-".join)
def test_two_ranks_are_one_process(funnel_table, funnel_config, tmp_path, kinds):
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    click, buy = kinds
    config = set_values(
        funnel_config,
        [
            f"tasks.click.kind={click}",
            f"tasks.buy.kind={buy}",
            "tasks.buy.pointwise_weight=0.2",
            f"data.path={tmp_path / 'log.parquet'}",
            "data.input=memory",
            "model.expert.dropout=0",
            "training.embedding_backend=torchrec",
            "training.batch_size=200",
            "training.epochs=2",
        ],
    )
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    alone = train_run(config_from_dict(config), tmp_path / "alone")
    ended = launch(["train", tmp_path / "config.yaml", "--out", tmp_path / "two", "--quiet"], 2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    two = RunDirectory.open(tmp_path / "two").metrics()
    for task in ("click", "buy"):
        for key, value in alone.metrics["tasks"][task].items():
            assert two["tasks"][task][key] == pytest.approx(value, abs=3e-4), (task, key)
    mine, theirs = (
        json.loads((tmp_path / name / "history.json").read_text())["epochs"][0]["loss"]
        for name in ("alone", "two")
    )
    assert mine == pytest.approx(theirs, rel=1e-5)
