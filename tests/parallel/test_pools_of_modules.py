"""Experts that are somebody's own modules, spread over ranks, through the commands."""

import importlib
import json
import shutil
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from mmoe.checkpoint.folder import CheckpointFolder
from tests.own_kinds import forget_own_kinds
from tests.parallel.funnel import ODD_EXPERTS, write_config, write_log
from tests.ranks import kill_at_first_checkpoint, launch

MIXED = {
    "experts": [
        {"kind": "odd", "count": 3},
        {"kind": "mlp", "count": 2, "hidden": [8, 6]},
        {"kind": "dcn_v2", "count": 1, "output": 6},
        {"kind": "odd", "count": 1},
    ]
}


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    log = write_log(folder)
    training = {"epochs": 3, "patience": 3, "batch_size": 100, "ema_decay": 0.9,
                "gradient_clip": 1.0, "checkpoint_every_steps": 2}  # fmt: skip
    write_config(
        folder / "mixed.yaml",
        log,
        MIXED,
        imports=[ODD_EXPERTS],
        training=training,
        parallel={"experts": "spread"},
    )
    return folder


@pytest.fixture
def _known():
    """The kind, in this process."""
    sys.modules.pop(ODD_EXPERTS, None)
    importlib.import_module(ODD_EXPERTS)
    yield
    forget_own_kinds()
    del sys.modules[ODD_EXPERTS]


@pytest.fixture(scope="module", name="runs")
def _runs(folder):
    """The same run on one process and on two ranks."""
    name = "mixed"
    for ranks in (1, 2):
        _train(folder, name, f"{name}-{ranks}", ranks)
    return name


def _train(folder, name, out, ranks, *more):
    ended = launch(["train", folder / f"{name}.yaml", "--out", folder / out, *more], ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended
    return ended


def _states(run):
    """Weights that score and all that training needs."""
    checkpoint = CheckpointFolder(run / "checkpoint")
    return checkpoint.model("latest") | checkpoint.training("latest")


def _close(mine, theirs, name, **most):
    torch.testing.assert_close(mine, theirs, **most, msg=lambda said: f"{name}: {said}")


def test_two_ranks_train_as_one_process(folder, runs):
    """Weights, their average, moments and numbers of steps; each under the name of one process."""
    one, two = (_states(folder / f"{runs}-{ranks}") for ranks in (1, 2))
    alone = {name for name in one if name.startswith("random_state")}
    assert one.keys() - alone == {name for name in two if not name.startswith("random_state")}
    experts = [name for name in one if ".experts." in name and name.endswith("scale")]
    assert len(experts) == 2 * 4, "the average and the raw weights"
    for name in one.keys() - alone:
        _close(one[name], two[name], name, atol=1e-5, rtol=1e-4)


def test_each_expert_is_written_by_the_rank_that_holds_it(folder, runs):
    step = CheckpointFolder(folder / f"{runs}-2" / "checkpoint").step("latest")
    held = [set(load_file(path)) for path in sorted(step.glob("model-*"))]
    scales = [{name for name in names if name.endswith("scale")} for names in held]
    assert all(scales) and not set.intersection(*scales)


@pytest.mark.usefixtures("_known")
def test_one_process_joins_evaluates_and_goes_on(folder, runs, mmoe, tmp_path):
    run = folder / f"{runs}-2"
    code, out, err = mmoe("evaluate", run, "--json")
    assert code == 0, err
    found = json.loads(out)["tasks"]["click"]
    expected = json.loads((run / "metrics.json").read_text())["tasks"]["click"]
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-6)
    assert mmoe("unshard", run, "--output", tmp_path / "one.safetensors")[0] == 0
    joined = load_file(tmp_path / "one.safetensors")
    best = CheckpointFolder(run / "checkpoint").model("best")
    assert joined.keys() == best.keys()
    assert all(torch.equal(joined[name], best[name]) for name in best)


def test_a_killed_run_goes_on(folder, runs):
    """To the bit on as many ranks, and to rounding on others."""
    kill_at_first_checkpoint(folder / f"{runs}.yaml", folder / "killed", 2)
    whole = _states(folder / f"{runs}-2")
    for ranks in (2, 3):
        out = folder / f"{runs}-killed-{ranks}"
        shutil.copytree(folder / "killed", out)
        _train(folder, runs, out.name, ranks, "--resume")
        found = _states(out)
        for name, tensor in whole.items():
            if ranks == 2:
                assert torch.equal(tensor, found[name]), name
            elif not name.startswith("random_state"):
                _close(tensor, found[name], name, atol=1e-4, rtol=1e-3)


def test_a_warm_start_keeps_each_expert(folder, runs):
    """From two ranks to three, with an expert more of the first kind."""
    more = {"experts": [{"kind": "odd", "count": 4}, *MIXED["experts"][1:]]}
    raw = yaml.safe_load((folder / f"{runs}.yaml").read_text())
    raw["model"] |= more
    raw["training"] |= {"optimizer": {"learning_rate": 1e-12}, "epochs": 1}
    (folder / f"{runs}-more.yaml").write_text(yaml.safe_dump(raw))
    _train(folder, f"{runs}-more", f"{runs}-more", 3, "--warm-start", folder / f"{runs}-2")
    old = CheckpointFolder(folder / f"{runs}-2" / "checkpoint").training("best")
    new = CheckpointFolder(folder / f"{runs}-more" / "checkpoint").training("latest")
    old = {
        name: tensor
        for name, tensor in old.items()
        if name.startswith("raw.") and ".experts." in name
    }
    assert {name for name in new if name not in old}, "of the new expert"
    for name in old:
        kept = new[name][tuple(slice(0, n) for n in old[name].shape)]
        _close(kept, old[name], name, atol=1e-7, rtol=1e-6)


def test_experts_change_ranks_between_epochs(folder, runs):
    """By the rows that they got; numbers stay, and a killed run goes on to the bit."""
    settings = ("--set", "parallel.rebalance=epoch")
    ended = _train(folder, runs, f"{runs}-moves", 2, *settings)
    said = [line for line in ended[0].err.splitlines() if " to rank " in line]
    assert said and "levels.0.mixture: " in said[0], ended[0].err
    assert "mean load, from now on" in said[0]
    still, found = (_states(folder / f"{runs}-{what}") for what in ("2", "moves"))
    placed = {name for name in found if name.startswith("placement.")}
    assert len(placed) == 3 and found.keys() - placed == still.keys()
    for name in still:
        if not name.startswith("random_state"):
            torch.testing.assert_close(found[name], still[name], atol=1e-5, rtol=1e-4)
    kill_at_first_checkpoint(folder / f"{runs}.yaml", folder / f"{runs}-moves-killed", 2, *settings)
    _train(folder, runs, f"{runs}-moves-killed", 2, "--resume", *settings)
    again = _states(folder / f"{runs}-moves-killed")
    assert again.keys() == found.keys()
    assert [name for name in found if not torch.equal(found[name], again[name])] == []
    _train(folder, runs, f"{runs}-moves", 1, "--resume", *settings)  # nothing is left to do
