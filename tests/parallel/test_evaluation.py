"""Ranks read and score a part of the rows each; what rank 0 measures is what one process does."""

import json

import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.train import evaluate_run, train_run
from tests.ranks import launch


# 400 rows in batches of 64 are seven; in batches of 256, two: one of three ranks has no row
@pytest.mark.parametrize(("how", "height"), [("stream", 64), ("memory", 256)])
def test_metrics_of_three_ranks_are_those_of_one(
    funnel_table, funnel_config, tmp_path, how, height
):
    (tmp_path / "log").mkdir()
    for n in range(4):
        part = funnel_table.slice(n * 1000, 1000)
        pq.write_table(part, tmp_path / "log" / f"{n}.parquet", row_group_size=250)
    settings = [
        f"data.path={tmp_path / 'log'}",
        f"data.input={how}",
        "data.streaming.chunk_rows=50",
        f"training.eval_batch_size={height}",
        "training.epochs=1",
        "training.embedding_backend=torchrec",
    ]
    run = tmp_path / "run"
    train_run(config_from_dict(set_values(funnel_config, settings)), run)
    alone = evaluate_run(RunDirectory.open(run))
    first, *others = launch(["evaluate", run, "--json", "--quiet"], 3)
    assert [first.code, *(rank.code for rank in others)] == [0, 0, 0], first.err
    assert json.loads(first.out)["tasks"] == alone["tasks"]
    assert json.loads(first.out).get("alarms") == alone.get("alarms")
    assert alone["tasks"]["click"]["rows"] == 400
    assert alone["tasks"]["click"]["gauc"] is not None
    assert [rank.out for rank in others] == ["", ""]
