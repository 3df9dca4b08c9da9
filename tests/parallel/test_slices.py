"""Experts in slices, by a line of the config, through the commands; and shadowed ones."""

import json

import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from tests.parallel.funnel import write_config, write_log
from tests.parallel.launch import kill_at_first_checkpoint, launch

pytestmark = pytest.mark.xdist_group("ranks")

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
            {"expert": {**EXPERT, "activation": activation}, "num_experts": 2},
            training=training,
            parallel={"experts": "spread"},
        )
    return folder


def _train(folder, config, out, ranks, *more):
    ended = launch(["train", folder / f"{config}.yaml", "--out", folder / out, *more], ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended
    return ended[0].err


def _states(run):
    checkpoint = CheckpointFolder(run / "checkpoint")
    tensors = checkpoint.model("latest") | checkpoint.training("latest")
    return {n: t for n, t in tensors.items() if not n.startswith(("random_state", "placement"))}


def _set(**parallel):
    return [part for k, v in parallel.items() for part in ("--set", f"parallel.{k}={v}")]


@pytest.fixture(scope="module", name="one")
def _one(folder):
    for activation in ("relu", "swiglu"):
        _train(folder, activation, f"one-{activation}", 1)
    return {a: _states(folder / f"one-{a}") for a in ("relu", "swiglu")}


WAYS = {
    "3 ranks": ("relu", 3, {"slices": 2}, "experts spread, cut into 2 slices, each batch"),
    "2 ranks, swiglu": ("swiglu", 2, {"slices": 3}, "cut into 3 slices"),
    "auto": ("swiglu", 4, {"slices": "auto"}, "cut into 2 slices"),
    "groups": ("relu", 4, {"slices": 4, "replicas": 2}, "cut into 4 slices in 2 groups"),
    "moves": ("relu", 3, {"slices": 4, "rebalance": "epoch"}, "cut into 4 slices"),
    "chunks": ("relu", 2, {"slices": 2, "chunks": 2}, "rows travel, 2 chunks"),
    "two levels": (
        "relu",
        4,
        {"slices": 2, "exchange": "hierarchical", "host_size": 2},
        "rows travel, two levels",
    ),
    "shadowed": ("relu", 3, {"slices": 2, "shadowed": "[2]"}, "weights of experts 1 too"),
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_hold_slices_train_as_one_process(folder, one, way):
    """Weights, averages and moments of whole experts are in the checkpoint, as of one process."""
    activation, ranks, parallel, said = WAYS[way]
    out = f"way-{list(WAYS).index(way)}"
    assert said in _train(folder, activation, out, ranks, *_set(**parallel))
    expected, found = one[activation], _states(folder / out)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4)
