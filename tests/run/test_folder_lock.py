"""One process writes into a folder: locks of the living, the dead, and those on other machines."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mmoe.run import folder_claim
from mmoe.run.folder_claim import (
    LOCK,
    MARK,
    FolderClaim,
    FolderExists,
    FolderInUse,
    FolderLock,
    FolderMark,
    Holder,
)


@pytest.fixture(name="hurried")
def _hurried(monkeypatch):
    """A watch that takes a moment, and beats that come within it."""
    for name, seconds in (("_BEAT", 0.02), ("_SILENCE", 0.2), ("_MOMENT", 0.0), ("_LOOK", 0.01)):
        monkeypatch.setattr(folder_claim, name, seconds)


def _foreign(folder, *, age=0.0):
    """A lock of another machine, whose last sign of life is so many seconds old."""
    elsewhere = {"host": "elsewhere", "machine": "another boot", "pid": 7}
    path = folder / LOCK
    path.write_text(json.dumps(vars(Holder.here()) | elsewhere))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return path


def test_a_lock_is_there_while_it_is_held(tmp_path):
    lock = FolderLock(tmp_path)
    lock.check()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{LOCK}", LOCK]
    with pytest.raises(FolderInUse, match=r"this process trains into it already"):
        FolderLock(tmp_path)
    lock.check()
    lock.release()
    assert not list(tmp_path.iterdir())


_HOLDS = """
import os, pathlib, sys, time
from mmoe.run.folder_claim import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(100)
"""


def test_a_living_process_is_named_and_a_killed_one_is_followed(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=rf"process {process.pid} on .* \(since 20.* UTC\) t"):
            FolderLock(tmp_path)
    finally:
        process.kill()
        process.communicate()
    left = Holder.read(tmp_path / LOCK)
    assert left is not None and left.pid == process.pid
    FolderLock(tmp_path).release()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("hurried")
def test_a_sign_of_life_on_another_machine_is_seen(tmp_path, monkeypatch):
    path, said = _foreign(tmp_path), []
    # It gives one while it is waited for, however slow this machine is
    monkeypatch.setattr(time, "sleep", lambda _: os.utime(path))
    with pytest.raises(
        FolderInUse, match=r"process 7 on elsewhere \(since .* trains into it; wait"
    ):
        FolderLock(tmp_path, said.append)
    assert [line.partition(";")[2] for line in said] == [" waiting up to 0 s for a sign of life"]
    assert path.exists(), "it is not ours to remove"


@pytest.mark.usefixtures("hurried")
def test_a_silent_machine_is_followed(tmp_path):
    _foreign(tmp_path)
    FolderLock(tmp_path).release()


@pytest.mark.usefixtures("hurried")
def test_without_locks_of_the_system_signs_of_life_decide(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    lock = FolderLock(tmp_path)
    with pytest.raises(FolderInUse, match=r"this process trains"):
        FolderLock(tmp_path)
    lock._ended.set()  # as if it had been killed
    FolderLock(tmp_path).release()


def test_a_lock_that_is_long_dead_is_taken_over_at_once(tmp_path):
    _foreign(tmp_path, age=folder_claim._LONG_DEAD + 60)
    said = []
    FolderLock(tmp_path, said.append).release()
    assert said == []


@pytest.mark.usefixtures("hurried")
def test_a_damaged_lock_names_nobody_and_is_taken_over(tmp_path):
    for content in (b"", b'{"id": "a', b"\xff\x00", b"[]"):
        (tmp_path / LOCK).write_bytes(content)
        FolderLock(tmp_path).release()


@pytest.mark.usefixtures("hurried")
def test_of_two_machines_that_follow_a_dead_one_one_does(tmp_path, monkeypatch):
    """Each has the system's lock, of its own machine."""
    _foreign(tmp_path, age=folder_claim._LONG_DEAD + 60)
    unlink = Path.unlink

    def meanwhile(path, **keywords):
        unlink(path, **keywords)
        if path.name == LOCK:
            _foreign(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", meanwhile)
        with pytest.raises(FolderInUse, match="process 7 on elsewhere"):
            FolderLock(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{LOCK}", LOCK]


@pytest.mark.usefixtures("hurried")
def test_who_was_taken_for_dead_notices(tmp_path):
    lock = FolderLock(tmp_path)
    other = _foreign(tmp_path)
    with pytest.raises(ValueError, match=r"no longer this process's .*: process 7 on elsewhere"):
        lock.check()
    lock.release()
    assert other.exists(), "it is not ours to remove"
    other.unlink()
    with pytest.raises(ValueError, match=rf"{LOCK} was removed"):
        lock.check()
    shutil.rmtree(tmp_path)
    with pytest.raises(ValueError, match=r"the folder is gone, removed or moved away"):
        lock.check()


def test_ranks_that_were_started_again_wait_for_those_before_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setattr(folder_claim, "_MOMENT", 0.0)
    dying, said = FolderLock(tmp_path), []
    threading.Timer(0.3, dying.release).start()
    FolderLock(tmp_path, said.append).release()
    assert [line.partition(";")[2] for line in said] == [" waiting up to 120 s for its end"]
    held = FolderLock(tmp_path)
    monkeypatch.setattr(folder_claim, "_DYING", 0.0)
    with pytest.raises(FolderInUse):
        FolderLock(tmp_path)
    held.release()


def test_of_many_that_make_a_folder_exactly_one_does(tmp_path, monkeypatch):
    """Where there is none, or an empty one."""
    monkeypatch.setattr(folder_claim, "_MOMENT", 0.0)
    for attempt in range(20):
        out, start = tmp_path / f"{attempt}", threading.Barrier(4)
        made, refused = [], []
        if attempt % 2:
            out.mkdir()

        def make(out=out, start=start, made=made, refused=refused):
            claim = FolderClaim("run")
            start.wait()
            try:
                claim.create(out)
                made.append(claim)
            except FolderExists as error:
                refused.append(str(error))

        _together(make, 4)
        assert (len(made), len(refused)) == (1, 3)
        assert all(text.startswith(f"{out}: exists already") for text in refused)
        assert sorted(path.name for path in out.iterdir()) == [f".{LOCK}", "mmoe.json", LOCK]
        assert json.loads((out / "mmoe.json").read_text())["id"] == made[0].mark.id
        made[0].release()


def test_numbered_folders_are_all_different(tmp_path):
    claims = [FolderClaim("run") for _ in range(6)]
    folders = []
    left = iter(claims)
    _together(lambda: folders.append(next(left).create(tmp_path / "a", numbered=True)), 6)
    assert sorted(folder.name for folder in folders) == ["a", "a-2", "a-3", "a-4", "a-5", "a-6"]
    for claim in claims:
        claim.withdraw()
    assert not list(tmp_path.iterdir())


def _together(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_file_server_that_is_away_takes_no_lock(tmp_path, monkeypatch):
    lock, read = FolderLock(tmp_path), Path.read_text

    def away(path, *arguments, **keywords):
        if path.name == LOCK:
            raise OSError(116, "Stale file handle")
        return read(path, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", away)
        lock.check()
    lock.release()


def test_a_machine_without_boot_id_is_known_by_its_name(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert Holder.here().machine.startswith("host ")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 99}, "format: .* less than or equal to 1, got 99"), ({"mmoe": "cake"}, "'cake'")],
)
def test_a_mark_of_a_later_version_or_another_kind(tmp_path, change, message):
    FolderMark(kind="run").write(tmp_path)
    mark = json.loads((tmp_path / MARK).read_text())
    (tmp_path / MARK).write_text(json.dumps(mark | change))
    with pytest.raises(ValueError, match=message):
        FolderMark.read(tmp_path)


def test_a_folder_that_cannot_be_locked_is_not_left_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_claim, "lock_file", full)
    with pytest.raises(OSError, match="No space left"), FolderClaim("run") as claim:
        claim.create(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_name_for_every_number_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_claim, "_NAMES", 2)
    for name in ("run", "run-2", "run-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").touch()
    with pytest.raises(FolderExists, match="and so do"), FolderClaim("run") as claim:
        claim.create(tmp_path / "run", numbered=True)


_FORKS = _HOLDS.replace("print(", "if os.fork():\n    os._exit(0)\nprint(")


def test_a_forked_child_does_not_hold_its_parents_lock(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _FORKS, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n", "by the child"
        assert process.wait() == 0
        FolderLock(tmp_path).release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
