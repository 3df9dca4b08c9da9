"""A folder that one process writes into: made once, marked as its own, locked while it works.

Only files by the names of those that mmoe makes are ever removed from it."""

import errno
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Literal, Self

from filelock import BaseFileLock, FileLock, Timeout
from pydantic import BaseModel, Field

from mmoe.config import Stored, read_model
from mmoe.errors import Damaged, Interrupted
from mmoe.parallel.launch.launcher import restarts_ranks
from mmoe.run.atomic_files import write_json

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


MARK = "mmoe.json"
Kind = Literal["run", "backtest", "comparison", "search"]
_FORMAT = 1
_NOTE = "made by mmoe, which knows the folder by it and removes nothing in folders without it"
# Names that a run or a walk whose own is taken goes through: runs/funnel, runs/funnel-2, …
_NAMES = 100_000

# Written aside by a process before the move to its name
_ASIDE = r"\.\d+\.tmp"
# What lies in the run's folder itself before there is a checkpoint
_EARLY = "warm_start|pruned|data|maturity|columns|plan|mlflow|history"
_JSON = rf"(?:config\.yaml|(?:{_EARLY}|curves|metrics|index|state|table)\.json)"
_OF_MANY = r"(?:(?:backtest|compare|baseline|tune)\.json|best\.yaml)"
_TENSORS = r"(?:model|training)(?:-\d{5}-of-\d{5})?\.safetensors"

STEP_NAME = re.compile(r"step-\d{8,}(?:-\d+)?")
STEP_FOLDER = re.compile(rf"{STEP_NAME.pattern}|\.{STEP_NAME.pattern}{_ASIDE}")
STEP_FILE = re.compile(rf"{_TENSORS}|state\.json")
STRAY_FILE = re.compile(rf"\.(?:{_JSON}|mmoe\.json|predictions\.parquet|{_OF_MANY}){_ASIDE}")
PROFILE_FILE = re.compile(r"(?:trace\.json|table\.(?:json|txt))|\.(?:trace|table)\.\w+\.\d+\.tmp")
VOCABULARY_FILE = re.compile(r"encoder\.json(?:\.tmp)?|\d{3}-.*\.(?:parquet|tmp)")
EVENT_FILE = re.compile(r"events\.out\.tfevents\..*")
EARLY_FILE = re.compile(rf"config\.yaml|(?:{_EARLY})\.json")


class FolderExists(ValueError):
    """Raised where a folder that was to be made holds something already."""


class FolderMark(Stored, populate_by_name=True):
    """Content of mmoe.json: which process of mmoe made a folder, and for what.

    Attributes:
        kind: Of the folder.
        format: Of the file.
        note: For people.
        made_folder: The folder was made for it, and may go with it.
        config_sha256: Of the config.yaml that the run wrote.
        diverged: How training ended, where it did so for ever.
        id: Of this run, and of no other.
    """

    kind: Kind = Field(validation_alias="mmoe", serialization_alias="mmoe")
    format: int = Field(default=_FORMAT, le=_FORMAT)
    note: str = _NOTE
    made_folder: bool = False
    config_sha256: str = ""
    diverged: str | None = None
    id: str = Field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def read(cls, folder: Path) -> "FolderMark | None":
        """Reads the mark of a folder; None where it has none.

        Raises:
            ValueError: It is damaged, or of a later version.
        """
        path = folder / MARK
        if not path.exists():
            return None
        try:
            return read_model(path, cls, "")
        except Damaged as error:
            raise ValueError(
                f"{path}: cannot be relied on ({error.reason}), so nobody can tell what in this "
                "folder is mmoe's; choose another --out"
            ) from None

    def write(self, folder: Path) -> None:
        """Writes the mark; whole or not at all."""
        write_json(folder / MARK, self.model_dump(by_alias=True))


class FolderClaim:
    """Right to write into a folder that this process made or goes on with; a context manager.

    A Ctrl-C leaves it as `Interrupted`, which says what there is to resume.

    Args:
        kind: What the folder is for.
        say: Told of a wait for another process.

    Attributes:
        begun: The folder that a resume would go on with, on every rank; None: there is none yet.
    """

    def __init__(self, kind: Kind, say: Callable[[str], None] = lambda _: None) -> None:
        self.kind: Kind = kind
        self.say = say
        self.lock: FolderLock | None = None
        self.mark: FolderMark | None = None
        self.begun: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, stop: BaseException | None, _: object) -> None:
        self.release()
        if isinstance(stop, KeyboardInterrupt) and self.begun is not None and self.begun.exists():
            raise Interrupted(self.begun, self.saved(self.begun)) from stop

    def saved(self, folder: Path) -> bool:
        """Returns whether something in the folder is gone on with, not begun again."""
        return True

    def go_on(self, out: Path, *, resume: bool) -> bool:
        """Locks a folder that is gone on with, before anything is read.

        Args:
            out: The folder.
            resume: It was asked for: else a folder that exists is refused.

        Returns:
            Whether it is; False: a new one can begin there.

        Raises:
            ValueError: `out` holds something else, or another process writes into it.
        """
        if not out.exists() or _holds_nothing(out):
            return False
        if not out.is_dir():
            raise ValueError(f"{out}: is a file; choose another --out, a folder")
        if not resume:
            raise _exists_already(out)
        mark = FolderMark.read(out)
        if mark is None:
            raise self.foreign(out)
        if mark.kind != self.kind:
            raise ValueError(f"{out}: is the folder of a {mark.kind}; choose another --out")
        self.hold(out)
        if self.mark is None:  # who held it took all away
            if _holds_nothing(out):
                return False
            raise self.foreign(out)
        remove_stray_files(out)
        return True

    def foreign(self, out: Path) -> ValueError:
        """Makes the refusal of a folder that is not known for one of this kind."""
        return ValueError(
            f"{out}: holds no {self.kind} to continue (there is no {MARK}, but {contents(out)}); "
            "choose another --out"
        )

    def create(self, out: Path, *, config_sha256: str = "", numbered: bool = False) -> Path:
        """Makes a folder, or takes an empty one; of several processes at once only one gets it.

        Args:
            out: The folder.
            config_sha256: For its mark.
            numbered: Where it exists, take the first of out-2, out-3, … that does not.

        Returns:
            The folder.

        Raises:
            FolderExists: It holds something.
        """
        others = (out.with_name(f"{out.name}-{number}") for number in range(2, _NAMES))
        for path in chain([out], others if numbered else []):
            try:
                made = self._make(path, new=numbered)
            except FolderExists:
                if not numbered:
                    raise
                continue
            mark = FolderMark(kind=self.kind, made_folder=made, config_sha256=config_sha256)
            mark.write(path)
            self.mark = mark
            remove_stray_files(path)
            return path
        raise FolderExists(f"{out}: exists already, and so do {_NAMES:,} more; choose another name")

    def hold(self, folder: Path) -> None:
        """Locks a folder that is there.

        Raises:
            FolderInUse: Another process holds it.
        """
        self.lock = FolderLock(folder, self.say)
        self.mark = FolderMark.read(folder)

    def check(self, *, look: bool = True) -> None:
        """Refuses to go on where the folder is no longer this process's; see `FolderLock.check`."""
        if self.lock is not None:
            self.lock.check(look=look)

    def remember(self, diverged: str) -> None:
        """Writes into the mark how training ended for ever."""
        if self.mark is not None and self.lock is not None and self.lock.is_mine():
            self.mark = self.mark.model_copy(update={"diverged": diverged})
            self.mark.write(self.lock.folder)

    def release(self) -> None:
        """Gives the folder up, so that others may write there."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def withdraw(self) -> None:
        """Removes mark, lock and, where it was made for them and is empty, the folder."""
        if self.lock is None or self.mark is None or not self.lock.is_mine():
            return
        folder = self.lock.folder
        (folder / MARK).unlink(missing_ok=True)
        remove_stray_files(folder)
        self.release()
        if self.mark.made_folder:
            with suppress(OSError):  # it holds something else
                folder.rmdir()

    def _make(self, path: Path, *, new: bool) -> bool:
        """Locks a new or an empty folder; whether it was made."""
        if self.lock is not None and self.lock.folder == path:
            return self.mark is not None and self.mark.made_folder
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            made = _mkdir(path)
            if not made and (new or not _holds_nothing(path)):
                raise _exists_already(path)
            try:
                self.lock = FolderLock(path, self.say)
            except FileNotFoundError:  # one that failed there has taken it away
                continue
            except FolderInUse:
                raise _exists_already(path) from None
            except OSError:
                if made:
                    with suppress(OSError):
                        path.rmdir()
                raise
            if _holds_nothing(path):
                return made
            self.release()  # another has been there in between
            raise _exists_already(path)


def remove_files(folder: Path, own: re.Pattern[str]) -> None:
    """Removes the files with such names, and the folder where nothing else is left in it."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in matching(folder, own):
        with suppress(OSError):
            path.unlink()
    with suppress(OSError):  # it holds something else
        folder.rmdir()


def remove_folders(folder: Path, named: re.Pattern[str], own: re.Pattern[str]) -> None:
    """Removes, as `remove_files` does, the files of each folder inside that has such a name."""
    for path in matching(folder, named):
        remove_files(path, own)


def matching(folder: Path, named: re.Pattern[str]) -> list[Path]:
    """Lists what lies in the folder under such a name, in order; nothing where it is absent."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if named.fullmatch(path.name))


def _holds_nothing(folder: Path) -> bool:
    """Returns whether a folder is empty, but for the lock of a process that died at its start.

    False where it is no folder.
    """
    if not folder.is_dir():
        return False
    own = {path.name for path in matching(folder, STRAY_FILE)}
    return all(is_lock_file(path.name) or path.name in own for path in folder.iterdir())


def _exists_already(path: Path) -> FolderExists:
    """Makes the refusal of a folder that holds something, or of a link that leads to none."""
    if path.is_symlink() and not path.exists():
        return FolderExists(
            f"{path}: is a link to {path.readlink()}, which is not there; make that folder, or "
            "choose another --out"
        )
    return FolderExists(
        f"{path}: exists already; continue it with --resume, or choose another --out"
    )


def remove_stray_files(folder: Path) -> None:
    """Removes small files that a killed process had begun and not yet moved to their names."""
    for path in matching(folder, STRAY_FILE):
        if path.is_file():
            path.unlink(missing_ok=True)


def contents(folder: Path) -> str:
    """Names the first five files of a folder, for a message."""
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _mkdir(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True
