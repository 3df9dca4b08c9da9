"""Outputs at an address: a folder is written on this machine and sent as it grows, or a file."""

import hashlib
import json
import posixpath
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mmoe.datasets.files.remote import RemoteFolder
from mmoe.parallel import from_all, from_first
from mmoe.run.folder_claim import lock_file
from mmoe.run.host_cache import cache_folder, cached_name
from mmoe.run.store import place_of

# Between two looks at what is new: a killed run loses at most so much more than its last checkpoint
_SECONDS = 5.0
# What says that other files are complete, so that it is sent behind them, the last one last
_LAST = ("index.json", "metrics.json", "backtest.json", "compare.json", "tune.json")
_OF_THIS_MACHINE = ("mmoe.lock",)
_SENT, _PROBE = "sent.json", ".mmoe-probe"


@contextmanager
def mirrored(
    out: str, *, resume: bool = False, say: Callable[[str], object] = lambda _: None
) -> Generator[Path]:
    """Gives a folder of this machine; what is written there is sent to an address.

    A checkpoint is sent before the file that names it, so whatever moment a command is killed at,
    the address holds a run that `resume` goes on with, here or on another machine.

    Args:
        out: The address, which fsspec knows.
        resume: Begin with what is there.
        say: Is told once where nothing can be sent for a while.

    Raises:
        ValueError: It is not empty, without `resume`; it cannot be reached; another process of this
            machine writes there; or ranks of several hosts would.
    """
    if len(set(from_all(socket.gethostname()))) > 1:
        raise ValueError(
            f"--out {out}: is an address, and the ranks are on several hosts; name a folder on a "
            "file system that they share, and copy it when the run is over"
        )
    mirror: _Mirror | None = None

    def begin() -> Path:
        nonlocal mirror
        mirror = _Mirror(out, say)
        mirror.begin(resume)
        return mirror.path

    path = from_first(begin, takes_long=True)
    with nullcontext() if mirror is None else mirror:  # of the first rank
        yield path


@contextmanager
def sent_file(output: str, option: str, *, overwrite: bool) -> Generator[Path]:
    """Gives a place for a file, which is sent to its address when the block is left well.

    Args:
        output: The address.
        option: That named it; starts error messages.
        overwrite: Replace what is there.

    Raises:
        ValueError: There is something, without `overwrite`; or it cannot be reached.
    """
    store, name = place_of(output, option)
    if store.has(name) and not overwrite:
        raise ValueError(
            f"{option} {output}: exists already; add --overwrite to replace it, or choose another "
            "name"
        )
    with tempfile.TemporaryDirectory(prefix="mmoe-") as own:
        path = Path(own) / name
        yield path
        store.put(path, name)


class _Stamp(NamedTuple):
    size: int
    modified: int


class _Mirror:
    """A folder of this machine, and the address that gets what is written there.

    Args:
        address: As the user says it.
        say: Is told where nothing can be sent for a while.
    """

    def __init__(self, address: str, say: Callable[[str], object]) -> None:
        self.remote, self.say = RemoteFolder(address, "--out"), say
        self.address = self.remote.address
        if not self.remote.root:
            raise ValueError(
                f"--out {address}: names no folder; name one, such as {self.address}runs/mine"
            )
        name = posixpath.basename(self.remote.root) or "run"
        self.home = cache_folder() / "out" / cached_name(name, self.address, "out")
        self.path = self.home / name
        self.sent: dict[str, _Stamp] = {}
        self.contents: dict[str, str] = {}  # of what says that others are complete: digests
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_sending, daemon=True)

    def begin(self, resume: bool) -> None:
        """Makes the folder: empty, or with what a killed command left, here or at the address.

        Raises:
            ValueError: There is something, without `resume`; or another process writes there.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self._lock = lock_file(
            self.home / ".lock",
            f"--out {self.address}: another mmoe of this machine writes there; wait until it ends, "
            "or name another address",
        )
        try:
            self._fill(resume)
        except BaseException:
            self._lock.release()
            raise

    def _fill(self, resume: bool) -> None:
        there = {n: int(info.get("size") or 0) for n, info in self.remote.files().items()}
        if there and not resume:
            raise ValueError(
                f"--out {self.address}: holds {min(there)} already; choose another address, or say "
                "--resume to go on with it"
            )
        finished = self.path / "metrics.json"
        if not resume and finished.exists():
            raise ValueError(
                f"--out {self.address}: {self.path} has a run for it that could not be sent; say "
                "--resume to send it, or remove that folder"
            )
        # What cannot be written is known before a long training
        self.remote.write(_PROBE, b"")
        self.remote.remove(_PROBE)
        known = self._remembered()
        sizes = {name: stamp.size for name, stamp in known.items()}
        if resume and self.path.is_dir() and sizes == there and self._is_last_here(there):
            self.sent = known  # this machine wrote it last, and may have more of it
            return
        shutil.rmtree(self.path, ignore_errors=True)
        (self.home / _SENT).unlink(missing_ok=True)
        self.path.mkdir(parents=True)
        for name in there:
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self.remote.get(name, path)
            self.sent[name] = _stamp(path)

    def __enter__(self) -> "_Mirror":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join()
        try:
            self.send()
            if kind is None:  # before others may begin
                shutil.rmtree(self.path, ignore_errors=True)
                (self.home / _SENT).unlink(missing_ok=True)
        except ValueError as error:
            if kind is None:  # else what was raised first says more
                raise ValueError(
                    f"{error}; what was written lies in {self.path}, and --resume sends it"
                ) from None
        finally:
            self._lock.release()

    def send(self) -> None:
        """Sends what is new; files that say that others are complete behind those."""
        last, there = self._look()
        while not self._send_others(there):
            last, there = self._look()
        for name, (content, stamp) in last.items():
            if self.sent.get(name) != stamp:
                self.remote.write(name, content)
                self.contents[name] = _digest(content)
                self._remember(name, stamp)
        for name in self.sent.keys() - there.keys() - last.keys():
            with suppress(FileNotFoundError):
                self.remote.remove(name)
            self._remember(name, None)

    def _send_others(self, there: Mapping[str, _Stamp]) -> bool:
        """Says whether all of them are sent: one may have been removed, and its index replaced."""
        try:
            for name, stamp in there.items():
                if self.sent.get(name) != stamp:
                    self.remote.put(self.path / name, name)
                    self._remember(name, stamp)
        except FileNotFoundError:
            return False
        return True

    def _look(self) -> tuple[dict[str, tuple[bytes, _Stamp]], dict[str, _Stamp]]:
        """Reads the files that say that others are complete, while those are listed."""
        while True:
            before, others = self._contents(), self._others()
            if before == self._contents():
                ordered = sorted(before, key=lambda name: _LAST.index(posixpath.basename(name)))
                return {name: before[name] for name in ordered}, others

    def _contents(self) -> dict[str, tuple[bytes, _Stamp]]:
        found = {}
        for path in self.path.rglob("*"):
            if path.name in _LAST:
                with suppress(FileNotFoundError):
                    found[path.relative_to(self.path).as_posix()] = path.read_bytes(), _stamp(path)
        return found

    def _others(self) -> dict[str, _Stamp]:
        found = {}
        for path in self.path.rglob("*"):
            left_out = path.name.startswith(".") or path.name in (*_LAST, *_OF_THIS_MACHINE)
            with suppress(FileNotFoundError):
                if path.is_file() and not left_out:
                    found[path.relative_to(self.path).as_posix()] = _stamp(path)
        return found

    def _is_last_here(self, there: Mapping[str, int]) -> bool:
        """Whether no other machine went on meanwhile: its indexes name other checkpoints."""
        last = [name for name in there if posixpath.basename(name) in _LAST]
        return all(_digest(self.remote.read(name)) == self.contents.get(name) for name in last)

    def _keep_sending(self) -> None:
        told = False
        while not self._over.wait(_SECONDS):
            try:
                self.send()
                told = False
            except (ValueError, OSError) as error:  # it is tried again, and at the end it counts
                if not told:
                    self.say(f"{error}; it is tried again")
                told = True

    def _remember(self, name: str, stamp: _Stamp | None) -> None:
        if stamp is None:
            self.sent.pop(name, None)
        else:
            self.sent[name] = stamp
        content = {"sent": self.sent, "contents": self.contents}
        (self.home / _SENT).write_text(json.dumps(content), encoding="utf-8")

    def _remembered(self) -> dict[str, _Stamp]:
        try:
            content: Mapping[str, Any] = json.loads((self.home / _SENT).read_text("utf-8"))
            self.contents = dict(content["contents"])
            return {name: _Stamp(*map(int, stamp)) for name, stamp in content["sent"].items()}
        except (OSError, ValueError, TypeError, KeyError):
            return {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return _Stamp(found.st_size, found.st_mtime_ns)
