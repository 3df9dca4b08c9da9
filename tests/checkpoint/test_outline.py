"""Sizes in a stranger's run: refused before memory is taken, by what its tensors are."""

import json
import resource
import shutil

import pytest
import yaml

from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train import WarmStart, train_run
from tests.train.every_kind import SPLITS, raw_config

HASHED = {"kind": "categorical", "name": "position", "dim": 4, "encoding": "hash", "hash_size": 9}


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    raw = raw_config({"features": [HASHED]}, folder, epochs=1)
    train_run(config_from_dict(raw), folder / "run", splits=SPLITS)
    return folder / "run", raw


@pytest.fixture(name="changed")
def _changed(trained, tmp_path):
    """The run with other sizes in its config, or in what its encoder has learnt."""

    def change(*sizes, hash_size=None):
        run = tmp_path / "changed"
        shutil.copytree(trained[0], run)
        config, encoder = run / "config.yaml", run / "vocabulary" / "encoder.json"
        config.write_text(yaml.safe_dump(set_values(yaml.safe_load(config.read_text()), sizes)))
        if hash_size is not None:
            learnt = json.loads(encoder.read_text())
            learnt["tables"]["position"]["size"] = hash_size
            encoder.write_text(json.dumps(learnt))
        return run

    return change


LARGE = [
    ("model.expert.hidden=[1000000, 1000000]", r"a tensor of shape \[3, 21, 1000000\], 240"),
    ("model.tower.hidden=[1000000, 1000000]", r"a tensor of shape \[1000000, 8\], 30\.5 MiB with"),
    ("model.num_experts=60000", r"a tensor of shape \[60000, \d+, 8\], .* all that are"),
    ("model.expert={kind: deepfm, hidden: [8], output: 8}\nmodel.num_experts=60000",
     "its config asks for a tensor of shape"),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "said"), LARGE)
def test_sizes_beyond_what_is_stored_take_no_memory(changed, trained, tmp_path, sizes, said):
    run, before = changed(*sizes.splitlines()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=said):
        load_predictor(RunDirectory.open(run))
    config = config_from_dict(trained[1])
    with pytest.raises(ValueError, match=r"asks for a tensor|is .* there and .* here"):
        train_run(config, tmp_path / "new", splits=SPLITS, warm_start=WarmStart(run))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 1024  # KiB


def test_tables_are_compared_before_they_are_made(changed, trained, tmp_path):
    run, said = changed(hash_size=2 * 10**9), r"'tables.position' has shape \[11, 4\] in the"
    with pytest.raises(ValueError, match=said):
        load_predictor(RunDirectory.open(run))
    config = config_from_dict(trained[1])
    with pytest.raises(ValueError, match=said):
        train_run(config, tmp_path / "new", splits=SPLITS, warm_start=WarmStart(run))


def test_a_run_that_is_resumed_likewise(changed, trained):
    run = changed("model.tower.hidden=[1000000, 1000000]")
    raw = set_values(trained[1], ["model.tower.hidden=[1000000, 1000000]"])
    state = next(run.glob("checkpoint/step-*/state.json"))
    state.write_text(json.dumps(json.loads(state.read_text()) | {"finished": False}))
    with pytest.raises(ValueError, match="its config asks for a tensor of shape"):
        train_run(config_from_dict(raw), run, splits=SPLITS, resume=True)


@pytest.mark.parametrize(
    ("key", "kind"), [("num_experts", "mmoe"), ("shared_experts", "cgc"), ("task_experts", "ple")]
)
def test_experts_have_a_most(trained, key, kind):
    raw = set_values(trained[1], [f"model.kind={kind}", f"model.{key}=1000000000"])
    with pytest.raises(ValueError, match=rf"model.{key}: Input should be less than or equal"):
        config_from_dict(raw)
