"""Whole runs on several ranks: the numbers of one process, whatever their number and history."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.run import RunDirectory
from tests.ranks import free_port, launch, start, wait_for
from tests.runs import scores

pytestmark = pytest.mark.torchrec

ROWS = 4_000


@pytest.fixture(scope="module", name="folder")
def _folder(funnel_config, funnel_table, tmp_path_factory):
    """`log/` in row groups, and one config for each way to read it and to hold the experts."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "log").mkdir()
    log = _pictured(funnel_table)
    for part in range(4):
        rows = log[part * ROWS // 4 : (part + 1) * ROWS // 4]
        pq.write_table(rows, folder / "log" / f"part-{part}.parquet", row_group_size=250)
    for name, experts, gate in (
        ("spread", "spread", {"kind": "top_k", "k": 2, "balance_loss": 0.01}),
        ("replicated", "replicated", {"kind": "softmax"}),
    ):
        raw = json.loads(json.dumps(funnel_config))
        raw["data"] = {
            "path": str(folder / "log"),
            "split": {"by": "random"},
            "group_column": "user",
            "input": "stream",
            "streaming": {"shuffle_buffer_rows": 600, "lanes": 3},
        }
        raw["features"].append({"kind": "vector", "name": "picture", "dim": 2})
        raw["model"] |= {
            "gate": gate,
            "expert": {"hidden": [16, 8]},  # no dropout: ranks draw alone
            "wide": experts == "replicated",
        }
        raw["training"] |= {
            "embedding_backend": "torchrec",
            "epochs": 2,
            "batch_size": 240,
            "checkpoint_every_steps": 6,
            "ema_decay": 0.9,
            "gradient_clip": 1.0,
        }
        raw["parallel"] = {"experts": experts}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(raw))
    return folder


def _pictured(table):
    """With a vector of the price in most rows."""
    price_N = table["price"].to_numpy()
    vectors = list(np.stack([price_N, np.sqrt(price_N), -price_N], axis=1))
    return table.append_column("picture", pa.array(vectors, mask=price_N < 0.2))


def _train(folder, name, out, ranks, *more):
    ended = launch(["train", folder / f"{name}.yaml", "--out", folder / out, *more], ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended[0].err
    return json.loads((folder / out / "metrics.json").read_text())


@pytest.fixture(scope="module", name="one", params=["spread", "replicated"])
def _one(request, folder):
    """A run of one process."""
    name = request.param
    return name, _train(folder, name, f"{name}-1", 1)


def _close(metrics, others, within):
    for task, values in metrics["tasks"].items():
        for key in ("auc", "gauc", "ne"):
            assert others["tasks"][task][key] == pytest.approx(values[key], abs=within)


def test_two_ranks_train_as_one_process(folder, one):
    name, metrics = one
    two = _train(folder, name, f"{name}-2", 2)
    _close(metrics, two, 1e-4)
    assert two["train"]["ranks"] == 2
    plan = json.loads((folder / f"{name}-2" / "plan.json").read_text())
    assert plan["experts"] == name
    if name == "replicated":  # rank 0 fits the wide part; both add it to their rows' logits
        tensors = [
            CheckpointFolder(folder / f"{name}-{ranks}" / "checkpoint").model("best")
            for ranks in (1, 2)
        ]
        for wide in ("wide.ids_RT", "wide.dense_TF", "wide.bias_T"):
            assert torch.equal(*(of_run[wide] for of_run in tensors))
        assert tensors[0]["wide.ids_RT"].any()
    losses = [
        [
            epoch["loss"]
            for epoch in json.loads((folder / run / "history.json").read_text())["epochs"]
        ]
        for run in (f"{name}-1", f"{name}-2")
    ]
    for ours, theirs in zip(*losses, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-5)


def test_what_four_ranks_saved_goes_on_on_any_number(folder, one, funnel_table):
    """Killed on 4 ranks in the second epoch; finished on 3, scored on 1: as if never stopped."""
    name, metrics = one
    if name == "replicated":
        pytest.skip("spread experts alone are pieces; tables are in both")
    run = folder / f"{name}-4"
    port = free_port()
    arguments = ["train", folder / f"{name}.yaml", "--out", run]
    ranks = [start(arguments, rank, 4, port) for rank in range(4)]
    wait_for(run / "checkpoint" / "index.json")
    for rank in ranks:
        rank.kill()
        rank.wait()
    assert len(list(run.glob("checkpoint/*/model-*-of-*.safetensors"))) >= 2
    _close(metrics, _train(folder, name, f"{name}-4", 3, "--resume"), 1e-4)
    whole, loaded = (
        scores(RunDirectory.open(folder / f"{name}-{ranks}"), _pictured(funnel_table))
        for ranks in (1, 4)
    )
    assert np.abs(whole - loaded).max() < 1e-3


def test_scores_and_metrics_are_those_of_one_process(folder, one):
    name, metrics = one
    run = folder / f"{name}-1"
    ended = launch(["evaluate", run, "--json"], 3)
    assert [rank.code for rank in ended] == [0] * 3, ended[0].err
    found = json.loads(ended[0].out)["tasks"]
    if name == "replicated":
        assert found == metrics["tasks"]
    for task, values in metrics["tasks"].items():  # spread experts: mixed rank by rank
        assert found[task] == pytest.approx(values, abs=1e-6)
    if name == "replicated":
        return
    for out, ranks in (("alone", 1), ("together", 3)):
        source = folder / "log"
        ended = launch(
            ["score", run, "--input", source, "--output", folder / f"{name}-{out}"], ranks
        )
        assert [rank.code for rank in ended] == [0] * ranks, ended[0].err
    alone, together = (
        {path.name: pq.read_table(path) for path in (folder / f"{name}-{out}").glob("*.parquet")}
        for out in ("alone", "together")
    )
    assert alone.keys() == together.keys()
    assert len(alone) == 4
    for file, table in alone.items():
        for column in table.column_names:
            found, expected = together[file][column].to_numpy(), table[column].to_numpy()
            assert np.abs(found - expected).max() < 1e-6
