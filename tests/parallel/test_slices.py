"""Experts in slices, by a line of the config, through the commands; and shadowed ones."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from mmoe.config import config_from_dict
from tests.parallel.funnel import write_config, write_log
from tests.ranks import kill_at_first_checkpoint, launch
from tests.runs import states

EXPERT = {"kind": "mlp", "hidden": [12, 6], "output_activation": "none"}


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slices")
    training = {
        "epochs": 2,
        "patience": 2,
        "batch_size": 100,
        "ema_decay": 0.9,
        "gradient_clip": 0.5,
        "optimizer": {"kind": "adamw", "weight_decay": 0.01},
    }
    log = write_log(folder)
    for activation in ("relu", "swiglu"):
        write_config(
            folder / f"{activation}.yaml",
            log,
            {"expert": {**EXPERT, "activation": activation}, "num_experts": 3},
            training=training,
            parallel={"experts": "spread"},
        )
    return folder


def _train(folder, config, out, ranks, *more):
    ended = launch(["train", folder / f"{config}.yaml", "--out", folder / out, *more], ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended
    return ended[0].err


def _set(**parallel):
    return [part for k, v in parallel.items() for part in ("--set", f"parallel.{k}={v}")]


@pytest.fixture(scope="module", name="one")
def _one(folder):
    for activation in ("relu", "swiglu"):
        _train(folder, activation, f"one-{activation}", 1)
    return {a: states(folder / f"one-{a}") for a in ("relu", "swiglu")}


WAYS = {
    "auto": ("swiglu", 4, {"slices": "auto"}, "experts spread, cut into 2 slices, each batch"),
    "groups": ("relu", 4, {"slices": 4, "replicas": 2}, "cut into 4 slices in 2 groups"),
    "moves": ("relu", 3, {"slices": 4, "rebalance": "epoch"}, " slice 1 to rank "),
    "chunks": ("swiglu", 2, {"slices": 3, "chunks": 2}, "rows travel, 2 chunks"),
    "two levels": (
        "relu",
        4,
        {"slices": 2, "exchange": "hierarchical", "host_size": 2},
        "rows travel, two levels",
    ),
    "shadowed": ("relu", 3, {"slices": 2, "shadowed": "[2]"}, "weights of experts 2 too"),
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_hold_slices_train_as_one_process(folder, one, way):
    """Weights, averages and moments of whole experts are in the checkpoint, as of one process."""
    activation, ranks, parallel, said = WAYS[way]
    out = f"way-{list(WAYS).index(way)}"
    assert said in _train(folder, activation, out, ranks, *_set(**parallel))
    expected, found = one[activation], states(folder / out)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4)


def test_a_killed_run_goes_on_in_other_slices_and_repeats_to_the_bit(folder):
    """Also where slices had changed ranks: other slices begin where they are spread evenly."""
    parallel = _set(slices=2, rebalance="epoch")
    assert " slice 1 to rank " in _train(folder, "relu", "whole", 3, *parallel)
    changes = {"again": (3, parallel), "other": (2, _set(slices=3, rebalance="epoch"))}
    kill_at_first_checkpoint(folder / "relu.yaml", folder / "killed", 3, *parallel)
    whole = states(folder / "whole")
    for out, (ranks, settings) in changes.items():
        shutil.copytree(folder / "killed", folder / out)
        _train(folder, "relu", out, ranks, "--resume", *settings)
        found = states(folder / out)
        assert whole.keys() == found.keys()
        for name in whole:
            if out == "again":
                assert torch.equal(whole[name], found[name]), name
            torch.testing.assert_close(whole[name], found[name], atol=1e-4, rtol=1e-3)


def test_scores_and_plain_files_are_those_of_whole_experts(folder, one):
    """On one process, on ranks that hold whole experts, and in the file of `mmoe unshard`."""
    _train(folder, "swiglu", "cut", 2, *_set(slices=2))
    scores = {}
    for ranks in (1, 2):
        out = folder / f"scores-{ranks}"
        names = ["--input", folder / "log.parquet", "--output", out]
        ended = launch(["score", folder / "cut", *names], ranks)
        assert [rank.code for rank in ended] == [0] * ranks, ended
        scores[ranks] = pd.read_parquet(out)["pred_click"].to_numpy()
    np.testing.assert_allclose(scores[1], scores[2], atol=1e-6)
    ended = launch(["evaluate", folder / "cut", "--json"], 2)
    found = json.loads(ended[0].out)["tasks"]["click"]["auc"]
    expected = json.loads((folder / "one-swiglu" / "metrics.json").read_text())
    assert found == pytest.approx(expected["tasks"]["click"]["auc"], abs=1e-3)
    (ended,) = launch(["unshard", folder / "cut", "--output", folder / "plain.safetensors"], 1)
    assert ended.code == 0, ended
    plain = load_file(folder / "plain.safetensors")
    name = "network.levels.0.mixture.experts.weights.0"
    assert plain[name].shape == one["swiglu"][name].shape == (3, 17, 24)
    explained = launch(["explain", folder / "cut"], 1)
    assert explained[0].code == 0, explained


def test_a_warm_start_fills_slices_as_whole_experts(folder, one):
    """With moments and more experts than an earlier run of one process had."""
    more = ["--warm-start", folder / "one-relu", "--set", "training.epochs=1"]
    more += ["--set", "model.num_experts=4", "--new-experts", "copy"]
    _train(folder, "relu", "more-1", 1, *more)
    _train(folder, "relu", "more-3", 3, *more, *_set(slices=2))
    expected, found = states(folder / "more-1"), states(folder / "more-3")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4)


def test_experts_that_cannot_be_cut_are_refused_or_stay_whole(folder):
    norm = ["--set", "model.expert.norm=layer"]
    out = ["--out", folder / "no", *_set(slices=2), *norm]
    ended = launch(["train", folder / "relu.yaml", *out], 2, seconds=60)
    assert [rank.code for rank in ended] == [2] * 2, ended
    said = "".join(rank.err for rank in ended)
    assert "parallel.slices is" in said and "norm: expected None" in said
    assert "or set parallel.slices: 1" in said and not (folder / "no").exists()
    said = _train(folder, "relu", "whole-experts", 4, *norm, *_set(slices="auto"))
    assert "others are whole here, so 1 rank(s) compute none" in said


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"slices": 0}, r"parallel.slices"),
        ({"slices": 2, "experts_per_rank": 2}, "slices is 2, but experts_per_rank is 2, so many"),
        ({"shadowed": [0]}, "parallel.shadowed"),
        ({"shadowed": [2, 2]}, "shadowed names an expert twice"),
        ({"shadowed": [2], "exchange": "auto"}, "but exchange: auto chooses them"),
        ({"shadowed": [2], "exchange": "gathered"}, "exchange: gathered copies the weights of all"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(parallel, message):
    raw = {
        "features": [{"kind": "numeric", "name": "age"}],
        "tasks": [{"name": "click", "label": "click"}],
    }
    with pytest.raises(ValueError, match=message):
        config_from_dict({**raw, "parallel": parallel})
