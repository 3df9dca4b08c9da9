"""An `--out` at an address: sent as it grows, and gone on with from there."""

import json
import time
from contextlib import suppress
from uuid import uuid4

import fsspec
import pyarrow.parquet as pq
import pytest
import yaml

from mmoe.datasets.files.remote import RemoteFolder
from mmoe.run import mirror as mirror_module
from mmoe.run.mirror import mirrored, sent_file


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(name="address")
def _address():
    return f"memory://mirror-{uuid4().hex}/run"


def there(address):
    files, root = fsspec.url_to_fs(address)
    return {path[len(root) + 1 :]: files.cat_file(path) for path in files.find(root)}


def named(address):
    index = there(address).get("checkpoint/index.json")
    return None if index is None else json.loads(index)["best"]


def dies(address, **files):
    """A command that writes, and fails; returns where it wrote."""
    with suppress(KeyError), mirrored(address) as folder:
        write(folder, **files)
        raise KeyError("x")
    return folder


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_is_written_is_sent_and_the_folder_goes(address, tmp_path):
    with mirrored(address) as folder:
        assert there(address) == {}  # it was tried out
        write(folder, a="1", step__b="2")
        (folder / ".half.tmp").write_text("half")
        (folder / "mmoe.lock").write_text("this machine's")
    assert there(address) == {"a": b"1", "step/b": b"2"}
    assert not folder.exists()


def test_what_says_that_others_are_complete_comes_behind_them(address, monkeypatch):
    sent = []
    put, write_bytes = RemoteFolder.put, RemoteFolder.write
    monkeypatch.setattr(
        RemoteFolder, "put", lambda r, path, name: (sent.append(name), put(r, path, name))
    )
    monkeypatch.setattr(
        RemoteFolder, "write", lambda r, name, c: (sent.append(name), write_bytes(r, name, c))
    )
    with mirrored(address) as folder:
        write(folder, **{"metrics.json": "{}", "checkpoint__index.json": "{}", "z": "1", "a": "2"})
    assert sent.pop(0) == ".mmoe-probe"
    assert set(sent[:2]) == {"a", "z"}
    assert sent[2:] == ["checkpoint/index.json", "metrics.json"]


def test_an_index_names_only_steps_that_are_there(address, monkeypatch):
    """Whatever is sent while a checkpoint takes the place of another."""
    monkeypatch.setattr(mirror_module, "_SECONDS", 0.001)
    with mirrored(address) as folder:
        write(folder, checkpoint__0="step", **{"checkpoint__index.json": json.dumps({"best": 0})})
        for step in range(1, 200):
            write(folder, **{f"checkpoint__{step}": "step"})
            index = folder / "checkpoint" / ".index"
            index.write_text(json.dumps({"best": step}))
            index.replace(folder / "checkpoint" / "index.json")
            (folder / "checkpoint" / f"{step - 1}").unlink()
            index, now = named(address), set(there(address))
            if index is not None and f"checkpoint/{index}" not in now:
                assert named(address) != index  # it has been replaced since
    assert set(there(address)) == {"checkpoint/199", "checkpoint/index.json"}


def test_a_command_that_fails_leaves_what_resume_goes_on_with(address, tmp_path, monkeypatch):
    folder = dies(address, a="1", b="2")
    assert folder.exists()  # this machine need not fetch it
    with (
        pytest.raises(ValueError, match=rf"--out {address}: holds a already; .* --resume"),
        mirrored(address),
    ):
        pass
    with mirrored(address, resume=True) as folder:
        assert (folder / "a").read_text() == "1"
        (folder / "b").unlink()
        write(folder, c="3")
    assert there(address) == {"a": b"1", "c": b"3"}
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "another machine"))
    with mirrored(address, resume=True) as folder:
        assert (folder / "c").read_text() == "3"
        write(folder, c="4")
    assert there(address)["c"] == b"4"


def test_this_machine_yields_to_another_that_went_on(address):
    """Files of the same size may be of another machine."""
    dies(address, **{"checkpoint__index.json": '{"best": 1}'})
    name = f"{address.removeprefix('memory:/')}/checkpoint/index.json"
    fsspec.filesystem("memory").pipe_file(name, b'{"best": 2}')
    with mirrored(address, resume=True) as folder:
        assert (folder / "checkpoint" / "index.json").read_text() == '{"best": 2}'


def test_a_run_that_could_not_be_sent_is_not_lost(address, monkeypatch):
    def unreachable(remote, path, name):
        raise ValueError(f"--out {remote.address}: cannot be reached")

    said, put = [], RemoteFolder.put
    monkeypatch.setattr(mirror_module, "_SECONDS", 0.001)

    def writes_in_vain():
        with mirrored(address, say=said.append) as folder:
            monkeypatch.setattr(RemoteFolder, "put", unreachable)
            write(folder, **{"metrics.json": "{}", "a": "1"})
            time.sleep(0.1)

    words = r"cannot be reached; what was written lies in .*, and --resume sends it"
    with pytest.raises(ValueError, match=words):
        writes_in_vain()
    assert [line.endswith("cannot be reached; it is tried again") for line in said] == [True]
    words = "has a run for it that could not be sent; say --resume"
    with pytest.raises(ValueError, match=words), mirrored(address):
        pass
    monkeypatch.setattr(RemoteFolder, "put", put)
    with mirrored(address, resume=True):
        pass
    assert there(address) == {"a": b"1", "metrics.json": b"{}"}


def test_one_at_a_time_on_a_machine(address):
    words = "another mmoe of this machine writes there"
    with mirrored(address), pytest.raises(ValueError, match=words), mirrored(address):
        pass


def test_a_file_is_sent_when_it_is_complete(address):
    name = f"{address}/one.html"
    asked = {"option": "--output", "overwrite": False}
    with suppress(KeyError), sent_file(name, **asked) as path:
        path.write_text("half")
        raise KeyError("x")
    assert there(address) == {}
    with sent_file(name, **asked) as path:
        path.write_text("whole")
    with (
        pytest.raises(ValueError, match=r"--output .*one\.html: exists already; add --overwrite"),
        sent_file(name, **asked),
    ):
        pass
    assert there(address) == {"one.html": b"whole"}


def test_an_address_that_cannot_be_reached():
    for address, words in (
        ("nosuch://bucket/run", "--out nosuch://bucket/run: cannot be opened"),
        ("memory://", "--out memory://: names no folder; name one, such as memory://runs/mine"),
    ):
        with pytest.raises(ValueError, match=words), mirrored(address):
            pass


def test_commands_at_an_address(mmoe, funnel_config, funnel_table, tmp_path, address):
    log, config = tmp_path / "log.parquet", tmp_path / "c.yaml"
    pq.write_table(funnel_table, log)
    config.write_text(yaml.safe_dump(funnel_config))
    few = ("--set", "training.epochs=1", "--quiet")
    code, out, err = mmoe("train", config, "--data", log, "--out", address, *few)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == address
    assert {"metrics.json", "config.yaml", "checkpoint/index.json"} < set(there(address))
    code, _, err = mmoe("train", config, "--data", log, "--out", address, *few)
    assert (code, err.count("\n")) == (2, 1)
    assert "--resume to go on with it" in err
    code, out, _ = mmoe("train", "--out", address, "--resume", "--data", log, "--quiet")
    assert code == 0
    assert mmoe("evaluate", address, "--data", log, "--quiet")[0] == 0
    page = f"{address}-page.html"
    assert mmoe("report", address, "--output", page) == (0, f"{page}\n", "")
    assert there(page.rpartition("/")[0])["run-page.html"].startswith(b"<!DOCTYPE html>")
    weights = f"{address}.safetensors"
    assert mmoe("unshard", address, "--output", weights, "--quiet")[0] == 0
    assert mmoe("init", log, "--label", "click", "--out", f"{address}.yaml")[0] == 0
