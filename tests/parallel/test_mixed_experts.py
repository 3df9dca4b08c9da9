"""Experts of several kinds through the commands: trained, evaluated, scored, continued, spread."""

import json

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from mmoe.datasets.bundled.synthetic import generate_funnel
from tests.parallel.launch import launch

KINDS = [
    {"kind": "mlp", "count": 2, "hidden": [6, 4]},
    {"kind": "mlp", "count": 1, "hidden": [4], "activation": "silu"},
    {"kind": "dcn_v2", "count": 2, "output": 4},
]


@pytest.fixture(name="config")
def _config(tmp_path):
    pq.write_table(generate_funnel(rows=600, users=50, items=30).table, tmp_path / "log.parquet")

    def write(name, kinds=KINDS, **sections):
        raw = {
            "data": {"path": str(tmp_path / "log.parquet")},
            "features": [{"kind": "numeric", "name": "hour"}],
            "tasks": [{"name": "click", "label": "click"}],
            "model": {
                "experts": kinds,
                "interaction": {"kind": "dcn_v2", "rank": 2},
                "gate": {"kind": "top_k", "k": 2},
                "tower": {"hidden": []},
            },
            "training": {"epochs": 1, "batch_size": 200},
            **sections,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(raw))
        return path

    return write


def _tensors(run, tmp_path, mmoe):
    out = tmp_path / f"{run.name}.safetensors"
    assert mmoe("unshard", run, "--output", out)[0] == 0
    from safetensors.torch import load_file

    return load_file(out)


def test_a_run_is_trained_evaluated_scored_and_continued(config, mmoe, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log.parquet"
    assert mmoe("train", config("one"), "--out", run)[0] == 0
    code, out, err = mmoe("evaluate", run, "--json")
    assert code == 0, err
    assert 0 < json.loads(out)["tasks"]["click"]["auc"] < 1
    code, _, err = mmoe("score", run, "--input", log, "--output", tmp_path / "scores.parquet")
    assert code == 0, err
    more = [KINDS[0] | {"count": 3}, KINDS[1] | {"count": 2}, KINDS[2] | {"count": 3}]
    grown = tmp_path / "grown"
    code, _, err = mmoe("train", config("two", more), "--out", grown, "--warm-start", run,
                        "--set", "training.optimizer.learning_rate=1e-12")  # fmt: skip
    assert code == 0, err
    old, new = _tensors(run, tmp_path, mmoe), _tensors(grown, tmp_path, mmoe)
    first = "weights.0", "weights.0", "stacked.crosses.0.weight"
    for i, (count, tensor) in enumerate(zip((2, 1, 2), first, strict=True)):
        name = f"network.levels.0.mixture.experts.pools.{i}.{tensor}"
        assert len(new[name]) == count + 1
        torch.testing.assert_close(new[name][:count], old[name])
    other = config("other", [KINDS[1], KINDS[0], KINDS[2]])
    code, _, err = mmoe("train", other, "--out", tmp_path / "x", "--warm-start", run)
    assert code == 2 and "activation of model.experts is ['relu', 'silu', None] there" in err


@pytest.mark.xdist_group("ranks")
def test_spread_over_ranks_it_is_the_run_of_one_process(config, mmoe, tmp_path):
    path = config("spread", parallel={"experts": "spread"})
    assert mmoe("train", path, "--out", tmp_path / "one")[0] == 0
    ended = launch(["train", path, "--out", tmp_path / "two"], 2)
    assert [rank.code for rank in ended] == [0, 0], ended
    one, two = (_tensors(tmp_path / name, tmp_path, mmoe) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=1e-4)
