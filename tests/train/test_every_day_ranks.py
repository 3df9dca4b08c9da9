"""Warm starts and backtests on several ranks: what one process has, to the bit or within 1e-4."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import load_config
from mmoe.parallel import ensure_process_group
from mmoe.train import WarmStart, train_run
from mmoe.train.backtest import BacktestSettings, backtest
from tests.ranks import launch
from tests.train import every_day_world as world

pytestmark = pytest.mark.torchrec

RANKS = 2


@pytest.fixture(scope="module", name="folder")
def _folder(funnel_config, funnel_table, tmp_path_factory) -> Path:
    """Monday's and Tuesday's log, one with a folder a day, and a config for each."""
    folder = tmp_path_factory.mktemp("days")
    few = funnel_table.filter(pa.array(funnel_table["user"].to_numpy() < 30))
    pq.write_table(few.slice(0, 1600), folder / "monday.parquet", row_group_size=200)
    pq.write_table(funnel_table[2000:], folder / "tuesday.parquet", row_group_size=200)
    for number in range(3):
        (folder / "days" / f"day={number}").mkdir(parents=True)
        rows = funnel_table.slice(number * 1000, 1000)
        pq.write_table(rows, folder / "days" / f"day={number}" / "rows.parquet")
    for name, path, epochs in (
        ("monday", "monday.parquet", 1),
        ("tuesday", "tuesday.parquet", 2),
        ("days", "days", 1),
    ):
        raw = _raw(funnel_config, folder / path, epochs)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(raw))
    return folder


def _raw(funnel_config, path, epochs):
    """Spread experts, a managed table, two shardings; no dropout, which ranks draw alone."""
    raw = json.loads(json.dumps(funnel_config))
    raw["data"] |= {"path": str(path), "split": {"by": "random"}, "input": "stream"}
    managed = {"encoding": "managed", "rows": 10, "evict": "lfu", "evict_every": 2}
    raw["features"][1] |= managed
    raw["model"] |= {
        "gate": {"kind": "top_k", "k": 2, "balance_loss": 0.01},
        "expert": {"hidden": [16, 8]},
    }
    raw["training"] |= {
        "embedding_backend": "torchrec",
        "epochs": epochs,
        "batch_size": 150,
        "checkpoint_every_steps": 3,
        "ema_decay": 0.9,
    }
    raw["parallel"] = {
        "tables": {"sharding": "row_wise"},
        "per_table": {"user": {"sharding": "table_wise"}},
    }
    return raw


@pytest.fixture(scope="module", name="reports")
def _reports(folder, run_ranks):
    """What two ranks made of all of it; see `every_day_world.py`."""
    one, two = run_ranks("train.every_day_world", RANKS, folder)
    assert one == two
    ensure_process_group()
    return one


@pytest.mark.parametrize("name", world.CASES)
def test_before_the_first_step_ranks_hold_what_one_process_holds(folder, reports, tmp_path, name):
    config = load_config(folder / "tuesday.yaml")
    assert reports["fits"] == [1, 0], "the first rank reads the stream for all"
    report, predictions_NT = world.begun(name, config, folder / "monday-2", tmp_path)
    assert reports[name] == report
    one, two = CheckpointFolder(tmp_path), CheckpointFolder(folder / f"{name}-2")
    for ours, theirs in ((two.model("best"), one.model("best")), (two.training(), one.training())):
        assert ours.keys() == theirs.keys()
        different = [n for n in ours if not torch.equal(ours[n], theirs[n]) and n != "random_state"]
        assert different == []
    found_NT = np.load(folder / f"{name}-2" / "predictions.npy")
    np.testing.assert_allclose(found_NT, predictions_NT, atol=1e-6)


def test_losses_and_metrics_are_those_of_one_process(folder, reports):
    warm = WarmStart(folder / "monday-2")
    train_run(load_config(folder / "tuesday.yaml"), folder / "tuesday-1", warm_start=warm)
    one, two = (json.loads((folder / f"tuesday-{w}" / "history.json").read_text()) for w in (1, 2))
    for ours, theirs in zip(two["epochs"], one["epochs"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    _close(_metrics(folder / "tuesday-2"), _metrics(folder / "tuesday-1"))
    one, two = (
        json.loads((folder / f"tuesday-{w}" / "warm_start.json").read_text()) for w in (1, 2)
    )
    assert one == two
    assert one["grown"] == ["table user 32 → 42 rows (+10)"]


def test_a_stopped_run_goes_on_on_another_number_of_ranks(folder, reports):
    run = folder / "stopped-2"
    assert not (run / "metrics.json").exists()
    assert CheckpointFolder(run / "checkpoint").index()["latest"] == "step-00000006"
    train_run(load_config(folder / "tuesday.yaml"), run, resume=True)
    _close(_metrics(run), _metrics(folder / "tuesday-2"))


def test_a_refused_warm_start_is_one_message_and_writes_nothing(folder, reports):
    out = folder / "refused"
    arguments = ["train", folder / "tuesday.yaml", "--warm-start", folder / "monday-2"]
    ended = launch([*arguments, "--out", out, "--set", "model.tower.hidden=[4]"], RANKS)
    assert [rank.code for rank in ended] == [2] * RANKS
    (said,) = [line for rank in ended for line in rank.err.splitlines() if "error" in line]
    assert "model.tower.hidden is [8] there and [4] here" in said
    assert not out.exists()


def test_ranks_with_other_options_are_told_so(folder, reports):
    assert "rank 1 was started with another config than rank 0" in reports["mixed"]
    assert "--new-experts: 'fresh' there, 'copy' here" in reports["mixed"]
    assert not (folder / "mixed").exists()


def test_a_backtest_stopped_and_resumed_is_that_of_one_process(folder, reports):
    assert reports["stopped at"] == ["mmoe.json", "plan.json", "trained-0", "trained-1"]
    settings = BacktestSettings(column="day", days=2)
    one = backtest(load_config(folder / "days.yaml"), folder / "days-1", settings)
    two = reports["backtest"]
    assert json.loads((folder / "days-2" / "backtest.json").read_text()) == two
    for ours, theirs in zip(two["days"], one["days"], strict=True):
        assert ours["test_day"] == theirs["test_day"]
        _close(ours, theirs)
    _close({"tasks": two["total"]}, {"tasks": one["total"]})


def test_a_finished_backtest_is_printed_once(folder, reports):
    out = folder / "days-2"
    arguments = ["backtest", folder / "days.yaml", "--column", "day", "--days", "2", "--out", out]
    first, second = launch([*arguments, "--resume"], RANKS)
    assert (first.code, second.code) == (0, 0), first.err
    assert first.out.split()[-1] == str(out)
    assert f"{reports['backtest']['total']['click']['auc']:.4f}" in first.out
    assert second.out == second.err == ""


def _metrics(run: Path):
    return json.loads((run / "metrics.json").read_text())


def _close(ours, theirs):
    for task, values in theirs["tasks"].items():
        for key in ("auc", "gauc", "ne"):
            assert ours["tasks"][task][key] == pytest.approx(values[key], abs=1e-4), (task, key)
