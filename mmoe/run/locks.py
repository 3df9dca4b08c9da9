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

from mmoe.parallel.launch.launcher import launch_name

LOCK = "mmoe.lock"
_GUARD = f".{LOCK}"
# Seconds between two signs of life; without one until a holder elsewhere counts as dead, where it
# was watched and where its last one is that old when we come
_BEAT, _SILENCE, _LONG_DEAD = 10.0, 60.0, 600.0
# Seconds that a restart of the same ranks waits for its own dying processes
_DYING = 120.0
# Seconds between two looks, and in which another may be about to end
_LOOK, _MOMENT = 0.1, 0.5
# What file systems without locks say
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


def lock_file(path: Path, seconds: float = 0.0) -> BaseFileLock:
    """Locks a file until it is released or this process ends.

    Args:
        path: The file; made where it is absent.
        seconds: To wait for another process; -1: until that one ends.

    Returns:
        The lock; `is_locked` is False where the file's disk has no locks.

    Raises:
        Timeout: Another process has it.
    """
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=seconds, poll_interval=_LOOK)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return lock


def locked(path: Path, refusal: str) -> BaseFileLock:
    """Locks a file as `lock_file` does.

    Raises:
        ValueError: Another process has it: the refusal.
    """
    try:
        return lock_file(path)
    except Timeout:
        raise ValueError(refusal) from None


class FolderInUse(ValueError):
    """Raised where another process writes into the folder."""


class Holder(BaseModel, frozen=True):
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
        return cls(
            id=uuid.uuid4().hex,
            pid=os.getpid(),
            host=socket.gethostname(),
            machine=_machine(),
            since=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            launch=launch_name(),
        )

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """Reads a lock file; None where it is absent or damaged."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


class FolderLock:
    """Right to write into a folder; `take` waits for nobody who is alive.

    On one machine the system itself knows whether the holder lives (`.mmoe.lock` is locked until
    its process ends), so what a killed process held is taken over at once. Of a holder on another
    machine, or where the file system has no such locks, the time of `mmoe.lock` says it: the holder
    renews it every ten seconds. One that is seen to do so is alive; one that does not for a minute
    is dead. A holder that was stopped for so long finds its lock gone, and has to end (`check`).
    """

    def __init__(self, folder: Path, holder: Holder, guard: BaseFileLock) -> None:
        self.folder, self.path, self.holder = folder, folder / LOCK, holder
        self._guard, self._lost, self._ended = guard, False, threading.Event()
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
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        path, mine = folder / LOCK, Holder.here()
        guard = _lock_guard(path, mine)
        try:
            holder = Holder.read(path)
            if not guard.is_locked or holder is None or holder.machine != mine.machine:
                _wait_for_silence(path, mine, say)
            path.unlink(missing_ok=True)
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(mine.model_dump_json(indent=1))
            except FileExistsError:  # another machine was faster
                raise _in_use(path, mine) from None
        except BaseException:
            _release(guard, path)
            raise
        return cls(folder, mine, guard)

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
        other = Holder.read(self.path)
        whose = f"{other} has taken it over" if other is not None else f"{LOCK} was removed"
        raise ValueError(
            f"{self.folder}: is no longer this process's to write into: {whose}; let that one "
            "finish, or go on with --resume"
        )

    def is_mine(self) -> bool:
        """Returns whether the lock is still this process's."""
        return not self._lost and self._is_mine()

    def release(self) -> None:
        """Gives the lock up and removes its files."""
        self._ended.set()
        if self.is_mine():
            with suppress(OSError):
                self.path.unlink()
        _release(self._guard, self.path)

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT):
            if not self._is_mine():
                self._lost = not self._ended.is_set()
                return
            with suppress(OSError):
                os.utime(self.path)

    def _is_mine(self) -> bool:
        try:
            return self.holder.id in self.path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file server that is away for a while: nobody else can write either
            return True


def is_lock_file(name: str) -> bool:
    """Returns whether a file of this name belongs to a folder's lock."""
    return name in (LOCK, _GUARD)


def _lock_guard(path: Path, mine: Holder) -> BaseFileLock:
    """Locks the file that keeps out others of this machine; see `lock_file`.

    Raises:
        FolderInUse: One of them holds it.
    """
    for seconds in (_MOMENT, _DYING):
        try:
            return lock_file(path.with_name(_GUARD), seconds)
        except Timeout:
            if not _restarts(path, mine):
                break
    raise _in_use(path, mine)


def _wait_for_silence(path: Path, mine: Holder, say: Callable[[str], None]) -> None:
    """Waits until a holder that gives no signs of life counts as dead; without one not at all.

    Raises:
        FolderInUse: It gives one.
    """
    start = heard = time.monotonic()
    sign = _sign(path)
    clock = path.with_name(_GUARD)
    clock.touch()  # the clock of the folder's file system
    if sign is None or (_sign(clock) or 0) - sign > _LONG_DEAD * 1e9:
        return
    say(
        f"{path.parent} is held by {Holder.read(path) or 'an unknown process'}; waiting up to "
        f"{_SILENCE:.0f} s for a sign of life"
    )
    while time.monotonic() - heard <= _SILENCE:
        time.sleep(_LOOK)
        before, sign = sign, _sign(path)
        if sign is None:
            return
        if sign != before:
            heard = time.monotonic()
            if not _restarts(path, mine) or heard - start > _DYING:
                raise _in_use(path, mine)


def _sign(path: Path) -> int | None:
    """Time of the last sign of life, in ns."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return None


def _restarts(path: Path, mine: Holder) -> bool:
    """Whether the holder is a dying process of the ranks that are started again here."""
    holder = Holder.read(path)
    return holder is not None and bool(holder.launch) and holder.launch == mine.launch


def _in_use(path: Path, mine: Holder) -> FolderInUse:
    holder = Holder.read(path)
    if holder is not None and (holder.pid, holder.machine) == (mine.pid, mine.machine):
        return FolderInUse(f"{path.parent}: this process trains into it already")
    return FolderInUse(
        f"{path.parent}: {holder or 'another process'} trains into it; wait until it has "
        f"finished, end it, or choose another --out"
    )


def _release(guard: BaseFileLock, path: Path) -> None:
    """Lets the system's lock go; its file before, which who waits for it makes anew."""
    if not path.exists():  # else somebody else's too
        with suppress(OSError):  # Windows removes no open files
            path.with_name(_GUARD).unlink()
    guard.release()


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"host {socket.gethostname()}"
