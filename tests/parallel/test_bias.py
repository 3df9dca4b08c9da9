"""Losses within groups and the bias tower over ranks: two of them are one process.

A group is whole on one rank; what a display adds is left out of scores on all.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.train import evaluate_run, train_run
from tests.ranks import launch


def test_two_ranks_are_one_process(funnel_table, funnel_config, tmp_path):
    rng = np.random.default_rng(5)
    table = funnel_table.append_column("position", pa.array(rng.integers(1, 7, len(funnel_table))))
    pq.write_table(table.drop_columns(["tags"]), tmp_path / "log.parquet")
    position = {"kind": "categorical", "name": "position"}
    config = set_values(
        {**funnel_config, "features": [*funnel_config["features"][:3], position]},
        [
            "model.bias={features: [position], dropout: 0, scoring: fixed, at: {position: 1}}",
            "tasks.click.kind=softmax",
            "tasks.buy.kind=jrc",
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
    two = RunDirectory.open(tmp_path / "two")
    for task in ("click", "buy"):
        for key, value in alone.metrics["tasks"][task].items():
            assert two.metrics()["tasks"][task][key] == pytest.approx(value, abs=3e-4), (task, key)
    mine, theirs = (
        json.loads((tmp_path / name / "history.json").read_text())["epochs"][0]["loss"]
        for name in ("alone", "two")
    )
    assert mine == pytest.approx(theirs, rel=1e-5)
    first, *_ = launch(["evaluate", two.path, "--json", "--quiet"], 2)
    assert first.code == 0, first.err
    assert json.loads(first.out)["tasks"] == evaluate_run(two)["tasks"]
