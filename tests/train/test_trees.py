"""Boosted trees beside the network: in memory and streamed, interrupted, warm-started, scored."""

import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.score import load_predictor
from mmoe.train import WarmStart, train_run
from tests.datasets.features.test_trees import FEATURES, TREES, deep_log

KEYS = {
    "features": [*FEATURES, TREES],
    "tasks": [{"name": "click", "label": "click"}],
    "model": {"wide": True, "num_experts": 2, "expert": {"hidden": [8]}, "embedding_dim": 4},
    "training": {"epochs": 2, "batch_size": 256, "checkpoint_every_steps": 3,
                 "embedding_backend": "plain"},
}  # fmt: skip


@pytest.fixture(name="config", params=["memory", "stream"])
def _config(request, tmp_path):
    pq.write_table(deep_log(2_000), tmp_path / "log.parquet", row_group_size=500)
    data = {"path": str(tmp_path / "log.parquet"), "input": request.param}
    return config_from_dict({**KEYS, "data": data})


def test_a_run_learns_from_trees_and_resumes_with_them(config, tmp_path, dies_after, assert_same):
    whole = train_run(config, tmp_path / "whole")
    assert whole.metrics["tasks"]["click"]["auc"] > 0.85
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "broken", reporter=dies_after(8))
    resumed = train_run(config, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert resumed.metrics["tasks"] == whole.metrics["tasks"]


def test_a_continued_run_keeps_the_trees_that_its_weights_know(config, tmp_path):
    first = train_run(config, tmp_path / "first")
    start = WarmStart(first.directory.path)
    second = train_run(config, tmp_path / "second", warm_start=start)
    new = deep_log(20, seed=4)
    columns = [
        load_predictor(run.directory)[1].encode(new, "new").dense_NF[:, -1]
        for run in (first, second)
    ]
    assert columns[0].tolist() == columns[1].tolist()
