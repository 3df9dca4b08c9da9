"""The host's cache: made once on a machine, read by all of its processes; copies of runs."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

from mmoe.datasets.files.data_file import is_address, without_protocol
from mmoe.datasets.files.remote import RemoteFolder
from mmoe.run.atomic_files import remove_dead, temporary_beside
from mmoe.run.directory import RunDirectory
from mmoe.run.folder_claim import STEP_NAME, lock_file

# Seconds for which nobody has asked for what lies there, until a newer one takes its place
_UNUSED = 7 * 86_400.0


def cache_folder() -> Path:
    """Returns the folder of the cache: `MMOE_CACHE`, else one of the platform's.

    Raises:
        ValueError: There is no such variable, nor a home.
    """
    named = os.environ.get("MMOE_CACHE")
    if named:
        return Path(named).absolute()
    try:
        return _of_platform(Path.home()) / "mmoe"
    except RuntimeError:
        raise ValueError(
            "there is no home folder to keep a cache in; set MMOE_CACHE to a folder of this machine"
        ) from None


def cached_name(name: str, whose: str, content: str) -> str:
    """Names what lies in the cache: for people, for whose it is, and for its content.

    Args:
        name: To be known by.
        whose: Address of the original: a newer copy of it takes the place of an old one.
        content: Whatever differs where the original does.

    Example:
        >>> cached_name("my run", "s3://models/my run", "step 120")
        'my-run-b2ea4f1c-648ae1a21a1aae05'
    """
    readable = re.sub(r"[^\w.-]+", "-", name)[:40].strip(".-") or "run"
    texts = (text.encode(errors="replace") for text in (whose, content))
    original, copy = (sha256(text).hexdigest() for text in texts)
    return f"{readable}-{original[:8]}-{copy[:16]}"


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder of the cache, which one process of the host makes where it is absent.

    Others wait for that one. It is there whole or not at all, whoever dies meanwhile; earlier ones
    of the same original that nobody has asked for in a week are removed.

    Args:
        place: The folder, in the cache, with a name of `cached_name`.
        make: Fills an empty folder, which then gets the name.

    Raises:
        ValueError: The cache cannot be written into, or has no room; or `make` raises it.
    """
    if not _used(place):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = lock_file(place.with_name(f".{place.name}.lock"), "", seconds=-1)
            try:
                if not _used(place):
                    _make(place, make)
            finally:
                lock.release()
        except OSError as error:
            raise _not_kept(place, error) from None
    return place


def _make(place: Path, make: Callable[[Path], None]) -> None:
    remove_dead(place.parent, place.name)
    _remove_unused(place)
    temporary = temporary_beside(place)
    temporary.mkdir()
    try:
        make(temporary)
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():  # where there are no locks, another may have been as quick
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _used(place: Path) -> bool:
    """Whether it is there; notes that somebody asked for it."""
    if not place.is_dir():
        return False
    with suppress(OSError):  # of another user
        os.utime(place)
    return True


def _remove_unused(place: Path) -> None:
    """Files that a process maps stay readable to it; what is asked for again is made again."""
    original = place.name.rpartition("-")[0]
    for earlier in place.parent.glob(f"{original}-*"):
        with suppress(OSError):
            if time.time() - earlier.stat().st_mtime > _UNUSED:
                shutil.rmtree(earlier)


def _not_kept(place: Path, error: OSError) -> ValueError:
    reason = error.strerror or type(error).__name__
    room = ""
    with suppress(OSError):
        free = shutil.disk_usage(place.parent).free
        room = f", {free:,} bytes are free"
    return ValueError(
        f"{place.parent}: the cache cannot be written ({reason}{room}); make room, or set "
        "MMOE_CACHE to another folder of this machine"
    )


def _of_platform(home: Path) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")


# What file systems say of a file that is another's when the content is, the surest first
_TAGS = (
    *("ETag", "etag", "md5Hash", "content_md5", "checksum"),
    *("LastModified", "last_modified", "mtime", "modified", "updated", "created"),
)
_OWN_FOLDERS = ("vocabulary/",)
_INDEX = "checkpoint/index.json"
_NEEDED = ("config.yaml", _INDEX)
_TIMES = 3  # that a copy is begun, of a run that is written to meanwhile


class _Changed(Exception):
    """Raised where the run is another than when its copy was begun."""


def open_run(
    address: str | Path, *, which: str = "best", tensors: Collection[str] = ("model",)
) -> RunDirectory:
    """Opens a run: a folder of this machine, or an address that fsspec knows (`s3://…`).

    Of a run at an address a copy is opened, without what only training needs. It lies in the host's
    cache (`MMOE_CACHE`), is made by one of the processes that ask for it, and made again where the
    run at the address has changed: other files, sizes, checksums or times.

    Args:
        address: The folder, or the address of one.
        which: Of the checkpoints, to copy: best, latest, or a folder's name.
        tensors: Of it, to copy: the model's, `training`.

    Raises:
        ValueError: No trained run is there, or it cannot be reached or copied.
    """
    text = str(without_protocol(address))
    if not is_address(text):
        return RunDirectory.open(text)
    remote = _RemoteRun(text)
    for _ in range(_TIMES):
        files = remote.needed(which, tensors)
        place = cache_folder() / "runs" / cached_name(remote.name, text, json.dumps(files))
        try:
            return RunDirectory.open(made_once(place, partial(remote.copy, files=files)))
        except _Changed:
            continue
    raise ValueError(
        f"{text}: was written to while it was copied, {_TIMES} times; open it when its training is "
        "over"
    )


class _RemoteRun(RemoteFolder):
    """A run at an address."""

    @property
    def name(self) -> str:
        """Its own, for people."""
        return self.root.rpartition("/")[2]

    def needed(self, which: str, tensors: Collection[str]) -> dict[str, list[str]]:
        """Lists what is needed of it: name → size, and what tells its content from another.

        Raises:
            ValueError: It is no trained run.
        """
        for needed in _NEEDED:
            if not self.has(needed):
                raise ValueError(
                    f"{self.address}: is not the address of a trained run, it has no {needed}; "
                    "name the folder that `mmoe train` made, as it was copied there"
                )
        there = self._marks()
        step = self._step(which)
        own = [name for name in there if _is_needed(name, step, tensors)]
        if not any(name.startswith(f"{step}/") for name in own):
            raise ValueError(
                f"{self.address}: {_INDEX} names {step.rpartition('/')[2]}, which is not there; "
                "copy the whole folder of the run there"
            )
        return {name: there[name] for name in sorted(own)}

    def copy(self, folder: Path, files: Mapping[str, list[str]]) -> None:
        """Copies these files into a folder.

        Raises:
            _Changed: They are no longer there as they were.
        """
        for name in files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fetch(name, path)
        now = self._marks()
        for name, mark in files.items():
            if now.get(name) != mark or (folder / name).stat().st_size != int(mark[0]):
                raise _Changed

    def _marks(self) -> dict[str, list[str]]:
        return {
            name: [
                str(int(info.get("size") or 0)),
                next((str(info[key]) for key in _TAGS if info.get(key)), ""),
            ]
            for name, info in self.files().items()
        }

    def _step(self, which: str) -> str:
        content = self.read(_INDEX)
        try:
            named = str(json.loads(content).get(which, which))
        except (ValueError, AttributeError):
            raise ValueError(f"{self.address}: {_INDEX} is damaged; copy it there again") from None
        if STEP_NAME.fullmatch(named) is None:
            raise ValueError(
                f"{self.address}: there is no checkpoint {named!r}; say best, latest, or the name "
                "of a folder in its checkpoint/"
            )
        return f"checkpoint/{named}"

    def _fetch(self, name: str, to: Path) -> None:
        try:
            self.get(name, to)
        except FileNotFoundError:
            raise _Changed from None
        with suppress(Exception):  # not all file systems know; the report says when it was trained
            time = self.filesystem.modified(self.path(name)).timestamp()
            os.utime(to, (time, time))


def _is_needed(name: str, step: str, tensors: Collection[str]) -> bool:
    """Whether scoring, evaluation or the report reads it."""
    if ".." in name.split("/"):
        return False  # a key of an object store may be anything
    if name == _INDEX or name.startswith(_OWN_FOLDERS):
        return True
    if name.startswith(f"{step}/"):
        rest = name[len(step) + 1 :]
        kinds = "|".join(tensors) or "$^"
        return rest == "state.json" or re.match(rf"(?:{kinds})[.-]", rest) is not None
    return "/" not in name and name.endswith((".json", ".yaml"))
