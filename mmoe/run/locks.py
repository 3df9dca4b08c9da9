"""Locks of files and folders, held for as long as their process lives."""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from mmoe.parallel.launch.launcher import launch_name

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = "mmoe.lock"
# Seconds between two signs of life; without one until a holder elsewhere counts as dead, where it
# was watched and where its last one is that old when we come
_BEAT, _SILENCE, _LONG_DEAD = 10.0, 60.0, 600.0
# Seconds that a restart of the same ranks waits for its own dying processes
_DYING = 120.0
# Seconds between two looks, and in which another may be about to take the lock over
_LOOK, _MOMENT = 0.1, 0.5
# A forked child shares its parent's lock, and would hold it after the parent's death
_held: set[int] = set()


def lock_file(descriptor: int, *, wait: bool = False) -> bool | None:
    """Locks an open file; False: another process has; None: the system, or the disk, cannot.

    Args:
        descriptor: Of the file.
        wait: Until the other one ends.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


def locked(path: Path, refusal: str) -> IO[bytes]:
    """Opens a file and locks it until it is closed; where there are no such locks, opens it.

    Raises:
        ValueError: Another process has it: the refusal.
    """
    file = path.open("ab")
    if lock_file(file.fileno()) is False:
        file.close()
        raise ValueError(refusal)
    return file


class FolderInUse(ValueError):
    """Raised where another process writes into the folder."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: what the lock file says.

    Attributes:
        id: Of this one taking of the lock.
        pid: Of the process.
        host: Name of its machine, for messages.
        machine: Tells machines apart, and one machine before and after it was started anew.
        since: When it took the lock.
        launch: Of the launcher that starts the ranks again where one dies; nothing without one.
    """

    id: str
    pid: int
    host: str
    machine: str
    since: str
    launch: str

    @classmethod
    def here(cls) -> "Holder":
        """Describes this process, now."""
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return cls(
            uuid.uuid4().hex, os.getpid(), socket.gethostname(), _machine(), since, launch_name()
        )

    @classmethod
    def parse(cls, text: str) -> "Holder | None":
        """Reads a lock file's text; None where it is damaged."""
        try:
            content = json.loads(text)
            words = {f.name: str(content[f.name]) for f in fields(cls) if f.name != "pid"}
            return cls(pid=int(content["pid"]), **words)
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


class FolderLock:
    """Right to write into a folder; `take` waits for nobody who is alive.

    On one machine the system itself knows whether the holder lives (`flock` ends with its process),
    so what a killed process held is taken over at once. Of a holder on another machine, or where
    the file system has no such locks, the file's time says it: the holder renews it every ten
    seconds. One that is seen to do so is alive; one that does not for a minute is dead. A holder
    that was stopped for so long finds its lock gone, and has to end (`check`).

    The file appears whole and locked (a link to a file made aside), so that of many processes which
    take the lock of one folder exactly one succeeds, also over NFS.
    """

    def __init__(self, folder: Path, holder: Holder, descriptor: int | None) -> None:
        self.folder, self.path, self.holder = folder, folder / LOCK, holder
        self._descriptor, self._lost = descriptor, False
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="mmoe-lock", daemon=True).start()

    @classmethod
    def take(cls, folder: Path, say: Callable[[str], None] = lambda _: None) -> "FolderLock":
        """Takes the lock of a folder that exists.

        Args:
            folder: The folder.
            say: Told of a wait.

        Raises:
            FolderInUse: Another process holds it.
            OSError: The folder is not there, or cannot be written into.
        """
        while True:
            try:
                return cls._take(folder, say)
            except FileNotFoundError:  # taken for what a dead process left: see remove_stray_locks
                if not folder.is_dir():
                    raise

    @classmethod
    def _take(cls, folder: Path, say: Callable[[str], None]) -> "FolderLock":
        mine = Holder.here()
        aside = folder / f".{LOCK}.{mine.id}.tmp"
        descriptor: int | None = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            lock_file(descriptor)
            os.write(descriptor, json.dumps(asdict(mine), indent=1).encode())
            os.fsync(descriptor)
            if fcntl is None:  # Windows moves no open files
                os.close(descriptor)
                descriptor = None
            _put_in_place(aside, mine, say)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        finally:
            aside.unlink(missing_ok=True)
        if descriptor is not None:
            _held.add(descriptor)
        return cls(folder, mine, descriptor)

    def check(self, *, look: bool = True) -> None:
        """Refuses to go on where the lock is no longer this process's.

        Args:
            look: False: by what the last sign of life found, at no cost.

        Raises:
            ValueError: The folder is gone, or another process took the lock over.
        """
        if not self._lost and (not look or self._is_mine()):
            return
        if not self.folder.is_dir():
            raise ValueError(
                f"{self.folder}: the folder is gone, removed or moved away while this process "
                "trained into it; start again"
            )
        other = _read(self.path)
        whose = f"{other} has taken it over" if other is not None else f"{LOCK} was removed"
        raise ValueError(
            f"{self.folder}: is no longer this process's to write into: {whose}; let that one "
            "finish, or go on with --resume"
        )

    def is_mine(self) -> bool:
        """Returns whether the lock is still this process's."""
        return not self._lost and self._is_mine()

    def release(self) -> None:
        """Gives the lock up and removes its file."""
        self._ended.set()
        if self.is_mine():
            with suppress(OSError):
                self.path.unlink()
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT):
            if not self._is_mine():
                self._lost = not self._ended.is_set()
                return
            with suppress(OSError):
                os.utime(self.path)

    def _is_mine(self) -> bool:
        try:
            found = Holder.parse(self.path.read_text(encoding="utf-8", errors="replace"))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file server that is away for a while: nobody else can write either
            return True
        return found is not None and found.id == self.holder.id


def is_lock_file(name: str) -> bool:
    """Returns whether a file of this name belongs to a lock, or to one that is being taken."""
    return name == LOCK or (name.startswith(f".{LOCK}.") and name.endswith(".tmp"))


def remove_stray_locks(lock: FolderLock) -> None:
    """Removes what processes left that were killed while they took the lock."""
    for path in lock.folder.glob(f".{LOCK}.*.tmp"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                if lock_file(descriptor):
                    path.unlink()
            finally:
                os.close(descriptor)


def _put_in_place(aside: Path, mine: Holder, say: Callable[[str], None]) -> None:
    """Gives the file its name, once nobody else holds the lock.

    Raises:
        FolderInUse: Somebody does.
    """
    path, watch = aside.with_name(LOCK), _Watch(aside.stat().st_mtime, mine, say)
    while not _link(aside, path):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            dead = watch.finds_dead(path, descriptor)
            if dead and fcntl is not None:
                aside.replace(path)  # while its old file is locked: of two that would, one does
                return
        finally:
            os.close(descriptor)
        if dead:
            aside.replace(path)  # Windows replaces no open files
            return
        time.sleep(_LOOK)


class _Watch:
    """Whether the holder of a lock is dead; looked at again and again.

    Args:
        now: By the clock of the folder's file system.
        mine: Who asks.
        say: Told of a wait.
    """

    def __init__(self, now: float, mine: Holder, say: Callable[[str], None]) -> None:
        self.now, self.mine, self.say = now, mine, say
        self.start = self.heard = time.monotonic()
        self.sign: tuple[int, str] | None = None
        self.waits = False

    def finds_dead(self, path: Path, descriptor: int) -> bool:
        """True: what `path` holds may be replaced; False: look again.

        Raises:
            FolderInUse: The holder is alive.
        """
        free, file = lock_file(descriptor), os.fstat(descriptor)
        text = os.pread(descriptor, 1 << 16, 0) if hasattr(os, "pread") else path.read_bytes()
        words = text.decode(errors="replace")
        holder = Holder.parse(words)
        if free:
            try:
                if not os.path.samestat(file, path.stat()):
                    return False  # taken over since it was opened
            except FileNotFoundError:
                return False
            if holder is not None and holder.machine == self.mine.machine:
                return True
        elif free is False:
            self._refuse(path, holder, _MOMENT)
            return False
        return self._silent(path, holder, (file.st_mtime_ns, words))

    def _silent(self, path: Path, holder: Holder | None, sign: tuple[int, str]) -> bool:
        """Judges by signs of life, where the system cannot tell."""
        now = time.monotonic()
        if self.sign is None and self.now - sign[0] / 1e9 > _LONG_DEAD:
            return True
        if self.sign not in (None, sign):
            self._refuse(path, holder, 0.0)
            self.heard = now
        self.sign = sign
        if not self.waits:
            self.say(
                f"{path.parent} is held by {holder or 'an unknown process'}; waiting up to "
                f"{_SILENCE:.0f} s for a sign of life"
            )
            self.waits = True
        return now - self.heard > _SILENCE

    def _refuse(self, path: Path, holder: Holder | None, patience: float) -> None:
        """Raises, unless it may pass: ranks that are started again wait for their own dead."""
        if holder is not None and holder.launch and holder.launch == self.mine.launch:
            patience = _DYING
        if time.monotonic() - self.start < patience:
            return
        if holder is not None and (holder.pid, holder.machine) == (os.getpid(), self.mine.machine):
            raise FolderInUse(f"{path.parent}: this process trains into it already")
        raise FolderInUse(
            f"{path.parent}: {holder or 'another process'} trains into it; wait until it has "
            f"finished, end it, or choose another --out"
        )


def _link(aside: Path, path: Path) -> bool:
    """Gives a file a second name; False: the name is taken."""
    try:
        os.link(aside, path)
        return True
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:  # no links here (FAT, some network drives): in two steps
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        aside.replace(path)
        return True


def _read(path: Path) -> Holder | None:
    try:
        return Holder.parse(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"host {socket.gethostname()}"


def _forget_in_child() -> None:
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
