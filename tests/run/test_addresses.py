"""Runs at an address: copied once per host, whole or not at all, and anew when they change."""

import json
import os
import subprocess
import sys
import time
from uuid import uuid4

import fsspec
import pyarrow.parquet as pq
import pytest

import mmoe as package
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.splits import Splits
from mmoe.run import host_cache, open_run
from mmoe.run.host_cache import cache_folder, cached_name, made_once
from mmoe.score import score_files
from mmoe.train import WarmStart, evaluate_run, train_run


@pytest.fixture(autouse=True, name="cache")
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module", name="splits")
def _splits(funnel_table):
    return Splits(
        train=funnel_table[:2000],
        validation=funnel_table[2000:2300],
        test=funnel_table[2300:2600],
        origin="log",
    )


@pytest.fixture(scope="module", name="run")
def _run(funnel_config, splits, tmp_path_factory):
    raw = {**funnel_config, "training": {**funnel_config["training"], "epochs": 1}}
    folder = tmp_path_factory.mktemp("run") / "run"
    return train_run(config_from_dict(raw), folder, splits=splits).directory


@pytest.fixture(name="address")
def _address(run):
    address = f"memory://models-{uuid4().hex}/mine"
    filesystem, root = fsspec.url_to_fs(address)
    filesystem.put(str(run.path), root, recursive=True)
    return address


def copies(cache):
    return sorted(path for path in cache.glob("runs/*") if not path.name.startswith("."))


def test_scores_are_those_of_the_folder(run, address, funnel_table, tmp_path):
    log = tmp_path / "log.parquet"
    pq.write_table(funnel_table, log)
    score_files(run, log, tmp_path / "here.parquet")
    score_files(open_run(address), log, tmp_path / "there.parquet")
    here, there = ((tmp_path / f"{n}.parquet").read_bytes() for n in ("here", "there"))
    assert here == there  # with the note of what scored them
    assert package.load(address).predict(funnel_table[:3]) == package.load(run).predict(
        funnel_table[:3]
    )


def test_it_is_copied_once_and_again_when_it_has_changed(run, address, cache):
    first = open_run(address)
    assert open_run(address) == first
    assert copies(cache) == [first.path]
    assert not list(first.checkpoint.glob("*/training*"))
    assert not first.tensorboard.exists()
    filesystem, root = fsspec.url_to_fs(address)
    filesystem.pipe(f"{root}/metrics.json", run.metrics_file.read_bytes() + b"\n")
    second = open_run(address)
    assert second != first
    assert first.path.is_dir()  # somebody may read it
    os.utime(first.path, (1, 1))
    filesystem.pipe(f"{root}/metrics.json", run.metrics_file.read_bytes() + b"\n\n")
    third = open_run(address)
    assert copies(cache) == sorted([second.path, third.path])


def test_an_address_of_this_machine_is_no_copy(run, cache):
    assert open_run(f"file://{run.path}").path == run.path
    assert open_run(run.path) == run
    assert not cache.exists()


def test_commands_take_addresses(mmoe, run, address, funnel_table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(funnel_table, "log.parquet")
    code, out, err = mmoe("evaluate", address, "--data", "log.parquet", "--json", "--quiet")
    assert code == 0, err
    assert json.loads(out)["tasks"] == evaluate_run(run, "log.parquet")["tasks"]
    code, _, err = mmoe("score", address, "--input", "log.parquet", "--output", "s.parquet")
    assert code == 0, err
    latest = ("--which", "latest")
    for of, name in ((address, "m"), (run.path, "n")):
        assert mmoe("unshard", of, "--output", f"{name}.safetensors", *latest, "--quiet")[0] == 0
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "n.safetensors").read_bytes()
    code, _, err = mmoe("report", address)
    assert (code, "say --output FILE.html" in err) == (2, True)
    code, _, err = mmoe("score", "memory://nothing/run", "--input", "x", "--output", "y.parquet")
    assert code == 2
    assert "memory://nothing/run: is not the address of a trained run, it has no config.yaml" in err


def test_a_warm_start_from_an_address(run, address, funnel_config, splits, tmp_path):
    here, there = (
        train_run(
            config_from_dict(set_values(funnel_config, ["name=next", "training.epochs=1"])),
            tmp_path / name,
            splits=splits,
            warm_start=WarmStart(begin),
        )
        for name, begin in (("here", run.path), ("there", address))
    )
    assert here.metrics["tasks"] == there.metrics["tasks"]
    assert json.loads(there.directory.warm_start_file.read_text())["run"] == address


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("config.yaml", r"^memory://\S+: is not the address of a trained run, it has no config"),
        ("checkpoint/index.json", r"^memory://\S+: .*it has no checkpoint/index.json; name the"),
        ("checkpoint/step-", r"^memory://\S+: checkpoint/index.json names step-\d+, which is not"),
    ],
)
def test_what_is_missing_is_told(address, cache, gone, says):
    filesystem, root = fsspec.url_to_fs(address)
    for path in filesystem.find(root):
        if path[len(root) + 1 :].startswith(gone):
            filesystem.rm_file(path)
    with pytest.raises(ValueError, match=says) as caught:
        open_run(address)
    assert "\n" not in str(caught.value)
    assert not copies(cache)


def test_a_protocol_that_nobody_knows_and_a_checkpoint_that_is_not_there(address, cache):
    with pytest.raises(ValueError, match=r"^nowhere://x/run: cannot be opened \(.*; check the pro"):
        open_run("nowhere://x/run")
    with pytest.raises(ValueError, match="there is no checkpoint 'newest'; say best, latest"):
        open_run(address, which="newest")

    def fails(folder):
        (folder / "half").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made_once(cache_folder() / "runs" / cached_name("a", "b", "c"), fails)
    assert not copies(cache)


def test_a_run_that_is_written_to_meanwhile_is_copied_as_it_is_then(
    run, address, cache, monkeypatch
):
    filesystem, root = fsspec.url_to_fs(address)
    copy, seen = host_cache._RemoteRun.copy, []

    def slowly(self, folder, files):
        seen.append(folder)
        if len(seen) == 1:
            filesystem.pipe(f"{root}/history.json", run.history_file.read_bytes() + b" ")
        copy(self, folder, files)

    monkeypatch.setattr(host_cache._RemoteRun, "copy", slowly)
    opened = open_run(address)
    assert opened.history_file.read_bytes().endswith(b" ")
    assert len(seen) == 2
    assert copies(cache) == [opened.path]
    assert not list(cache.glob("runs/*.tmp"))


_MAKE = """
import sys, time
from pathlib import Path
from mmoe.run.host_cache import cache_folder, cached_name, made_once

def make(folder):
    with (cache_folder() / "made").open("a") as file:
        file.write("once\\n")
    time.sleep(float(sys.argv[1]))
    (folder / "whole").touch()

place = cache_folder() / "runs" / cached_name("a", "b", "c")
assert (made_once(place, make) / "whole").exists()
"""


def test_of_several_processes_one_makes_it_and_a_dead_one_leaves_nothing(cache):
    cache.mkdir()
    killed = subprocess.Popen([sys.executable, "-c", _MAKE, "100"])
    deadline = time.monotonic() + 60
    while not (cache / "made").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    others = [subprocess.Popen([sys.executable, "-c", _MAKE, "0.3"]) for _ in range(3)]
    time.sleep(0.3)
    killed.kill()
    killed.wait(60)
    assert [other.wait(60) for other in others] == [0, 0, 0]
    assert (cache / "made").read_text() == "once\n" * 2
    assert [path.name for path in copies(cache)] == [cached_name("a", "b", "c")]
    assert not list(cache.glob("runs/.*.tmp"))


def test_the_folder_of_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("MMOE_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "mmoe"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert cache_folder() == tmp_path / "other" / "mmoe"
