"""Groups of ranks, each of which holds all experts, through the commands."""

import json
import shutil

import pytest
import torch

from mmoe.config import config_from_dict
from mmoe.models.layout import Layout
from mmoe.parallel import ReplicaGroups, ensure_process_group
from tests.parallel.funnel import ODD_EXPERTS, write_config, write_log
from tests.ranks import kill_at_first_checkpoint, launch
from tests.runs import states


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    mlps, modules = {"kind": "mlp", "count": 3, "hidden": [8, 6]}, {"kind": "odd", "count": 3}
    training = {"epochs": 2, "patience": 2, "batch_size": 100, "ema_decay": 0.9,
                "gradient_clip": 0.5}  # fmt: skip
    write_config(
        folder / "config.yaml",
        write_log(folder),
        {"experts": [mlps, modules]},
        imports=[ODD_EXPERTS],
        training=training,
        parallel={"experts": "spread", "replicas": 2, "rebalance": "epoch"},
    )
    return folder


def _train(folder, out, ranks, *more):
    ended = launch(["train", folder / "config.yaml", "--out", folder / out, *more], ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended
    return ended[0].err


@pytest.fixture(scope="module", name="four")
def _four(folder):
    """A run of four ranks, and what they said."""
    return _train(folder, "four", 4), states(folder / "four")


def test_four_ranks_in_two_groups_train_as_one_process(folder, four):
    """And what they wrote goes on without groups, on three ranks, as on one process."""
    _train(folder, "one", 1)
    assert "experts spread in 2 groups, each with all of them" in four[0]
    assert json.loads((folder / "four" / "plan.json").read_text())["replicas"] == 2
    one, found = states(folder / "one"), four[1]
    assert one.keys() == found.keys()
    for name in one:
        torch.testing.assert_close(one[name], found[name], atol=1e-5, rtol=1e-4)
    own = ["--import", ODD_EXPERTS]
    ended = launch(["evaluate", folder / "four", "--json", *own], 3)
    assert [rank.code for rank in ended] == [0] * 3, ended
    found = json.loads(ended[0].out)["tasks"]["click"]["auc"]
    expected = json.loads((folder / "one" / "metrics.json").read_text())["tasks"]["click"]["auc"]
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_killed_run_goes_on_with_another_number_of_groups(folder, four):
    """What two groups wrote is read without groups, and to the bit by two groups again."""
    kill_at_first_checkpoint(folder / "config.yaml", folder / "killed", 4)
    for out, ranks, more in (("again", 4, []), ("other", 3, ["--set", "parallel.replicas=1"])):
        shutil.copytree(folder / "killed", folder / out)
        _train(folder, out, ranks, "--resume", *more)
        whole, found = four[1], states(folder / out)
        assert whole.keys() == found.keys()
        for name in whole:
            if out == "again":
                assert torch.equal(whole[name], found[name]), name
            torch.testing.assert_close(whole[name], found[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("ranks", "setting", "message"),
    [
        (3, "parallel.replicas=2", "parallel.replicas is 2, but 3 ranks cannot be divided"),
        (
            2,
            "parallel.experts_per_rank=4",
            "parallel.experts_per_rank is 4, but 6 experts by 4 on a rank do not make groups",
        ),
    ],
)
def test_numbers_that_do_not_divide_are_refused(folder, ranks, setting, message):
    sets = [] if "replicas" in setting else ["--set", "parallel.replicas=1"]
    ended = launch(
        ["train", folder / "config.yaml", "--out", folder / "no", *sets, "--set", setting], ranks
    )
    assert [rank.code for rank in ended] == [2] * ranks
    assert message in "".join(rank.err for rank in ended)
    assert not (folder / "no").exists()


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"replicas": 2, "experts_per_rank": 3}, "replicas and experts_per_rank both say how many"),
        ({"replicas": 2, "experts": "replicated"}, "replicas is for spread experts, but experts"),
        ({"experts_per_rank": 0}, "experts_per_rank"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(parallel, message):
    raw = {
        "features": [{"kind": "numeric", "name": "age"}],
        "tasks": [{"name": "click", "label": "click"}],
    }
    with pytest.raises(ValueError, match=message):
        config_from_dict({**raw, "parallel": parallel})


def test_groups_divide_the_ranks():
    ensure_process_group()
    assert Layout(world_size=4, spread=True, rank=3).own_groups(8)[:3] == (3, 4, 1)
    with pytest.raises(ValueError, match=r"size: expected a number that divides the 1 rank\(s\)"):
        ReplicaGroups().of_size(2)
