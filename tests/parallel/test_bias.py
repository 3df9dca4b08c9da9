"""The bias tower over ranks: two of them train, evaluate and score as one process does."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.train import evaluate_run, train_run
from tests.ranks import launch

BIAS = {
    "drop": "{features: [position], dropout: 0}",
    "fixed": "{features: [position], dropout: 0, scoring: fixed, at: {position: 1}}",
}


@pytest.mark.parametrize("how", BIAS)
def test_two_ranks_are_one_process(funnel_table, funnel_config, tmp_path, how):
    rng = np.random.default_rng(5)
    table = funnel_table.append_column("position", pa.array(rng.integers(1, 7, len(funnel_table))))
    log = tmp_path / "log"
    log.mkdir()
    pq.write_table(table.drop_columns(["tags"]), log / "0.parquet")
    raw = {
        **funnel_config,
        "features": [*funnel_config["features"][:3], {"kind": "categorical", "name": "position"}],
    }
    config = set_values(
        raw,
        [
            f"model.bias={BIAS[how]}",
            f"data.path={log}",
            "model.expert.dropout=0",
            "training.embedding_backend=torchrec",
            "training.epochs=2",
        ],
    )
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    alone = train_run(config_from_dict(config), tmp_path / "alone")
    ended = launch(["train", tmp_path / "config.yaml", "--out", tmp_path / "two", "--quiet"], 2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    two = RunDirectory.open(tmp_path / "two")
    for key, value in alone.metrics["tasks"]["click"].items():
        assert two.metrics()["tasks"]["click"][key] == pytest.approx(value, abs=2e-4), key
    here = evaluate_run(two)
    first, *_ = launch(["evaluate", two.path, "--json", "--quiet"], 2)
    assert first.code == 0, first.err
    assert json.loads(first.out)["tasks"] == here["tasks"]
