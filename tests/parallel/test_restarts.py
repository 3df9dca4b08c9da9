"""Ranks that torchrun starts again: they meet, and go on with nothing but a run of their own."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from mmoe.parallel.launch import run_as_rank
from mmoe.parallel.launch.process_group import store_of_this_start
from mmoe.parallel.launch.run_as_rank import begun_before
from tests.forked import ROOT


def _meet(store, ranks):
    with ThreadPoolExecutor(ranks) as pool:
        starts = [pool.submit(store_of_this_start, store, r, ranks, 20.0) for r in range(ranks)]
        return [start.result() for start in starts]


def test_ranks_of_one_start_share_what_no_other_start_sees():
    store = dist.HashStore()
    store.set("mmoe/here/2", "left by a rank that died before the others came")
    first = _meet(store, 3)
    first[1].set("address", "of a rank that is dead by now")
    assert first[2].get("address") == b"of a rank that is dead by now"
    second = _meet(store, 3)
    assert not any(mine.check(["address"]) for mine in second)
    second[2].set("address", "new")
    assert second[0].get("address") == b"new"


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        store_of_this_start(dist.HashStore(), 0, 2, 0.0)


@pytest.fixture(name="torchrun")
def _torchrun(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    return store  # it listens as long as somebody holds it


@pytest.mark.usefixtures("torchrun")
def test_a_restart_goes_on_with_the_run_that_it_began(tmp_path):
    run = tmp_path / "run"
    assert not begun_before(run)
    assert not begun_before(run)  # ended before it wrote anything
    run.mkdir()
    (run / "config.yaml").touch()
    assert begun_before(run)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "file").touch()
    for _ in range(2):  # what was there before, and what is no folder
        assert not begun_before(tmp_path) and not begun_before(tmp_path / "file")


def test_torchrun_takes_what_was_said_for_the_root_cause(monkeypatch, tmp_path, capfd):
    """It compares whole seconds; ranks that end for lack of this one write nothing."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    before = int(time.time())
    run_as_rank._say("rank 1: no\nsuch file")
    assert capfd.readouterr().err == "mmoe: error: rank 1: no such file\n"
    told = json.loads((tmp_path / "error.json").read_text())["message"]
    assert told["message"] == "mmoe: error: rank 1: no such file"
    assert before - 1 <= told["extraInfo"]["timestamp"] < time.time() - 1


@pytest.mark.slow
def test_torchrun_repeats_an_error_and_ends_with_it(tmp_path):
    (tmp_path / "metrics.json").touch()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    mmoe = ["--max-restarts=1", "-m", "mmoe", "train", "synthetic-funnel", "--out", str(tmp_path)]
    done = subprocess.run(
        [*torchrun, *mmoe], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    error = f"mmoe: error: {tmp_path}: exists already"
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert sum(line.startswith(error) for line in lines) == 2
    assert "cannot meet" not in done.stderr
    assert any(f"traceback : {error}" in line for line in lines[-3:])
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.json"]
