"""Locks of files and folders, held for as long as their process lives."""

import errno
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout
from pydantic import BaseModel

from mmoe.parallel.launch.launcher import restarts_ranks

LOCK = "mmoe.lock"
_GUARD = f".{LOCK}"
# Seconds between two signs of life; without one until a holder elsewhere counts as dead, where it
# was watched and where its last one is that old when we come
_BEAT, _SILENCE, _LONG_DEAD = 10.0, 60.0, 600.0
# Seconds between two looks, and in which another may be about to end; that ranks which were started
# again wait for those before them
_LOOK, _MOMENT, _DYING = 0.1, 0.5, 120.0
# What file systems without locks say
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


class FolderInUse(ValueError):
    """Raised where another process writes into the folder."""


def lock_file(path: Path, refusal: str, seconds: float = 0.0) -> BaseFileLock:
    """Locks a file until it is released or this process ends.

    Args:
        path: The file; made where it is absent.
        refusal: Says who has it, and what to do.
        seconds: To wait for another process; -1: until that one ends.

    Returns:
        The lock; `is_locked` is False where the file's disk has no locks.

    Raises:
        FolderInUse: Another process has it: the refusal.
    """
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=seconds, poll_interval=_LOOK)
    except Timeout:
        raise FolderInUse(refusal) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return lock


class Holder(BaseModel):
    """Content of a folder's lock file: the id of this taking, process, machine and start."""

    id: str
    pid: int
    host: str
    machine: str  # other after the machine was started anew
    since: str

    @classmethod
    def here(cls) -> "Holder":
        """Describes this process, now."""
        machine = f"host {(host := socket.gethostname())}"
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
            machine = boot.strip()
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"
        return cls(id=uuid.uuid4().hex, pid=os.getpid(), host=host, machine=machine, since=since)

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """Reads a lock file; None where it is absent or damaged."""
        with suppress(OSError, ValueError):
            return cls.model_validate_json(path.read_bytes())
        return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


class FolderLock:
    """Right to write into a folder.

    The system itself frees the lock of `.mmoe.lock` when its process ends, so what a killed process
    of this machine held is taken over at once. A holder on another machine, or where the file
    system has no locks, touches `mmoe.lock` every ten seconds: one that was watched for a minute
    without that is dead. A holder that was stopped for so long has to end (`check`).

    Args:
        folder: That exists.
        say: Told of a wait.

    Raises:
        FolderInUse: Another process holds it.
        OSError: The folder is not there, or cannot be written into.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        self.folder, self.path, self.holder = folder, folder / LOCK, Holder.here()
        self._guard, self._say = folder / _GUARD, say
        self._lost, self._ended = False, threading.Event()
        try:
            self._lock = lock_file(self._guard, self._refusal(), _MOMENT)
        except FolderInUse:
            if not restarts_ranks():
                raise
            self._tell_of_wait(_DYING, "its end")
            self._lock = lock_file(self._guard, self._refusal(), _DYING)
        try:
            found = Holder.read(self.path)
            if not (self._lock.is_locked and found and found.machine == self.holder.machine):
                self._wait_for_silence()
            self.path.unlink(missing_ok=True)
            with self.path.open("x", encoding="utf-8") as file:
                file.write(self.holder.model_dump_json(indent=1))
        except BaseException as error:
            self._let_go()
            if isinstance(error, FileExistsError):  # another machine was faster
                raise FolderInUse(self._refusal()) from None
            raise
        threading.Thread(target=self._beat, name="mmoe-lock", daemon=True).start()

    def check(self, *, look: bool = True) -> None:
        """Refuses to go on where the lock is no longer this process's.

        Args:
            look: False: by what the last sign of life found, at no cost.

        Raises:
            ValueError: The folder is gone, or another process took the lock over.
        """
        if not self._lost and (not look or self._holds()):
            return
        if not self.folder.is_dir():
            raise ValueError(
                f"{self.folder}: the folder is gone, removed or moved away while this process "
                "trained into it; start again"
            )
        other = Holder.read(self.path)
        whose = f"{other} has taken it over" if other is not None else f"{LOCK} was removed"
        raise ValueError(
            f"{self.folder}: is no longer this process's to write into: {whose}; let that one "
            "finish, or go on with --resume"
        )

    def is_mine(self) -> bool:
        """Returns whether the lock is still this process's."""
        return not self._lost and self._holds()

    def release(self) -> None:
        """Gives the lock up and removes its files."""
        self._ended.set()
        if self.is_mine():
            with suppress(OSError):
                self.path.unlink()
        self._let_go()

    def _wait_for_silence(self) -> None:
        """Waits until a holder that gives no sign of life counts as dead."""
        self._guard.touch()  # a clock of the folder's file system
        start = heard = time.monotonic()
        sign, now = _time_of(self.path), _time_of(self._guard)
        if sign is None or (now or sign) - sign > _LONG_DEAD:
            return
        self._tell_of_wait(_SILENCE, "a sign of life")
        while sign is not None and time.monotonic() - heard <= _SILENCE:
            time.sleep(_LOOK)
            before, sign = sign, _time_of(self.path)
            if sign not in (None, before):
                heard = time.monotonic()
                if heard - start > _DYING * restarts_ranks():
                    raise FolderInUse(self._refusal())

    def _tell_of_wait(self, seconds: float, what: str) -> None:
        holder = Holder.read(self.path) or "an unknown process"
        self._say(f"{self.folder} is held by {holder}; waiting up to {seconds:.0f} s for {what}")

    def _refusal(self) -> str:
        found, own = Holder.read(self.path), self.holder
        if found is not None and (found.pid, found.machine) == (own.pid, own.machine):
            return f"{self.folder}: this process trains into it already"
        return (
            f"{self.folder}: {found or 'another process'} trains into it; wait until it has "
            f"finished, end it, or choose another --out"
        )

    def _let_go(self) -> None:
        if not self.path.exists():  # else somebody else's too; who waits for the file makes it anew
            with suppress(OSError):  # Windows removes no open files
                self._guard.unlink()
        self._lock.release()

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT):
            if not self._holds():
                self._lost = not self._ended.is_set()
                return
            with suppress(OSError):
                os.utime(self.path)

    def _holds(self) -> bool:
        try:
            return self.holder.id in self.path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file server that is away for a while: nobody else can write either
            return True


def is_lock_file(name: str) -> bool:
    """Returns whether a file of this name belongs to a folder's lock."""
    return name in (LOCK, _GUARD)


def _time_of(path: Path) -> float | None:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return None
