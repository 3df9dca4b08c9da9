"""`mmoe train --warm-start` and `mmoe backtest` on the command line."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml


@pytest.fixture(name="logs")
def _logs(funnel_table, tmp_path) -> Path:
    """Four days of 1,000 rows in one file, numbered in the column `day`."""
    days = pa.array([n // 1000 + 1 for n in range(4000)])
    pq.write_table(funnel_table.append_column("day", days), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


@pytest.fixture(name="config")
def _config(funnel_config, logs, tmp_path) -> Path:
    path = tmp_path / "funnel.yaml"
    training = {**funnel_config["training"], "epochs": 1}
    data = {**funnel_config["data"], "path": str(logs)}
    path.write_text(yaml.safe_dump({**funnel_config, "training": training, "data": data}))
    return path


def test_a_run_is_continued_with_its_own_config_or_another(mmoe, config, funnel_table, tmp_path):
    today = tmp_path / "today.parquet"
    pq.write_table(funnel_table.slice(1000, 2000), today)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    code, _, err = mmoe("train", config, "--out", first)
    assert code == 0, err
    warm = ("--data", today, "--quiet")
    code, out, err = mmoe("train", "--warm-start", first, "--out", second, *warm)
    assert code == 0, err
    assert out.splitlines()[-1] == str(second)
    assert yaml.safe_load((second / "config.yaml").read_text())["data"]["path"] == str(today)
    more = ("--set", "model.num_experts=5", "--new-experts", "copy")
    code, _, err = mmoe("train", config, "--warm-start", second, "--out", third, *more)
    assert code == 0, err
    assert f"warm start from {second}, step" in err
    assert "  initialised: expert 4 (a copy of expert 1), expert 5 (a copy of expert 2)" in err
    assert json.loads((third / "warm_start.json").read_text())["new_experts"] == "copy"
    before = (second / "metrics.json").read_text()
    code, _, err = mmoe("train", "--out", second, "--resume")  # its own config, nothing to do
    assert code == 0, err
    assert json.loads(before)["tasks"] == json.loads((second / "metrics.json").read_text())["tasks"]


def test_mistakes_are_one_line(mmoe, config, tmp_path):
    out = tmp_path / "out"
    for arguments, message in (
        (("train",), "RECIPE_OR_CONFIG.yaml is missing; only --warm-start and --resume know one"),
        (("train", "--resume", "--out", out), "out holds no config of a run; give REC"),
        (("train", "--warm-start", tmp_path / "no"), "no: there is no such run directory"),
        (("train", config, "--new-experts", "copy"), "--new-experts copy needs --warm-start RUN"),
        (("backtest", config, "--out", out), "holds the day; give --column NAME, or split by time"),
        (("backtest", config, "--resume"), "--resume needs --out: the folder of the backtest"),
        (("backtest", config, "--column", "price"), "numbers with a fraction, expected days"),
        (("backtest", config, "--column", "day", "--days", 4), "--days: expected at most 3, as"),
    ):
        code, _, err = mmoe(*arguments)
        assert code == 2
        assert message in err and len(err.splitlines()) == 1
    assert not out.exists()


def test_backtest_prints_days_and_a_total(mmoe, config, tmp_path):
    out = tmp_path / "out"
    walk = ("backtest", config, "--column", "day", "--days", 2, "--out", out, "--quiet")
    code, printed, err = mmoe(*walk)
    assert code == 0, err
    lines = printed.splitlines()
    assert lines[1].split()[:3] == ["2", "3", "click"]
    assert lines[3].split()[:3] == ["3", "4", "click"]
    assert lines[5].split()[:2] == ["total", "click"]
    assert lines[-1] == str(out)
    assert sorted(path.name for path in out.iterdir()) == [
        "backtest.json", "mmoe.json", "plan.json", "trained-2", "trained-3",
    ]  # fmt: skip
    code, again, err = mmoe(*walk, "--resume")
    assert code == 0 and again == printed
