"""Experts of several kinds through the commands: trained, evaluated, scored, continued."""

import json

import pytest
import torch

from tests.models.interactions import frozen_modules
from tests.parallel.funnel import write_config, write_log

KINDS = [
    {"kind": "mlp", "count": 2, "hidden": [6, 4]},
    {"kind": "mlp", "count": 1, "hidden": [4], "activation": "silu"},
    {"kind": "dcn_v2", "count": 2, "output": 4},
    {"kind": "fm", "count": 1, "output": 4, "factors": 3},
    {"kind": "deepfm", "count": 1, "output": 4, "factors": 3, "hidden": [5]},
    {"kind": "masknet", "count": 1, "output": 4, "dim": 5, "mask_hidden": 6},
    {"kind": "autoint", "count": 1, "output": 4, "fields": 3, "field_dim": 4},
    {"kind": "frozen", "count": 1, "output": 4, "module": f"{frozen_modules.__name__}:make_four"},
]
FROZEN = "network.levels.0.mixture.experts.pools.7.stacked.module"
CROSSED = {"kind": "dcn_v2", "rank": 2}


@pytest.fixture(name="config")
def _config(tmp_path):
    log = write_log(tmp_path, rows=600)

    def write(name, kinds=KINDS, interaction=CROSSED, **sections):
        return write_config(
            tmp_path / f"{name}.yaml",
            log,
            {"experts": kinds, "interaction": interaction},
            ids=("user_id", "item_id"),
            training={"epochs": 1, "batch_size": 200},
            **sections,
        )

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
    more = [kind | {"count": kind["count"] + (kind["kind"] != "frozen")} for kind in KINDS]
    grown = tmp_path / "grown"
    code, _, err = mmoe("train", config("two", more), "--out", grown, "--warm-start", run,
                        "--set", "training.optimizer.learning_rate=1e-12")  # fmt: skip
    assert code == 0, err
    old, new = _tensors(run, tmp_path, mmoe), _tensors(grown, tmp_path, mmoe)
    for i, kind in enumerate(KINDS[:-1]):
        names = [name for name in old if f"experts.pools.{i}." in name]
        assert names
        for name in names:
            assert len(new[name]) == kind["count"] + 1
            torch.testing.assert_close(new[name][: kind["count"]], old[name])
    width = old[f"{FROZEN}.linear.weight"].shape[2]
    for name, tensor in frozen_modules.make_four(width).state_dict().items():
        assert torch.equal(old[f"{FROZEN}.{name}"][0], tensor), "training moved it"
        assert torch.equal(new[f"{FROZEN}.{name}"][0], tensor)
    other = config("other", [KINDS[1], KINDS[0], *KINDS[2:]])
    code, _, err = mmoe("train", other, "--out", tmp_path / "x", "--warm-start", run)
    assert code == 2 and "activation of model.experts is ['relu', 'silu', None," in err
