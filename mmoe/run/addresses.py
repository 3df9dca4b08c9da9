"""`open_run`: a run where it lies, or at an address, from which it is copied once per host."""

import errno
import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from mmoe.datasets.files.data_file import is_address
from mmoe.datasets.files.remote import not_reached
from mmoe.run.directory import RunDirectory
from mmoe.run.host_cache import cache_folder, cached_name, made_once
from mmoe.run.own_files import STEP_NAME

T = TypeVar("T")
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
    text = str(address)
    if not is_address(text):
        return RunDirectory.open(address)
    if text.startswith(("file://", "local://")):
        return RunDirectory.open(fsspec.url_to_fs(text)[1])
    remote = _RemoteRun(text)
    for _ in range(_TIMES):
        files = remote.files(which, tensors)
        place = cache_folder() / "runs" / cached_name(remote.name, text, json.dumps(files))
        try:
            return RunDirectory.open(made_once(place, lambda folder: remote.copy(folder, files)))  # noqa: B023  # called at once
        except _Changed:
            continue
    raise ValueError(
        f"{text}: was written to while it was copied, {_TIMES} times; open it when its training is "
        "over"
    )


class _RemoteRun:
    """A run at an address.

    Args:
        address: As the user says it.

    Raises:
        ValueError: fsspec does not know the protocol, or a package is missing.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.filesystem: Any
        self.filesystem, root = self._ask(fsspec.url_to_fs, address)
        self.root = str(root).rstrip("/")
        self.name = self.root.rpartition("/")[2]

    def files(self, which: str, tensors: Collection[str]) -> dict[str, list[str]]:
        """Lists what is needed of it: name → size, and what tells its content from another.

        Raises:
            ValueError: It is no trained run.
        """
        self.filesystem.invalidate_cache()
        for needed in _NEEDED:
            if not self._ask(self.filesystem.exists, f"{self.root}/{needed}"):
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
            self._get(f"{self.root}/{name}", path)
        self.filesystem.invalidate_cache()
        now = self._marks()
        for name, mark in files.items():
            if now.get(name) != mark or (folder / name).stat().st_size != int(mark[0]):
                raise _Changed

    def _marks(self) -> dict[str, list[str]]:
        found = self._ask(self.filesystem.find, self.root, detail=True)
        start = len(self.root) + 1
        return {path[start:]: _mark(info) for path, info in found.items()}

    def _step(self, which: str) -> str:
        content = self._ask(self.filesystem.cat_file, f"{self.root}/{_INDEX}")
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

    def _get(self, path: str, to: Path) -> None:
        try:
            self._ask(self.filesystem.get_file, path, str(to))
        except FileNotFoundError:
            raise _Changed from None
        with suppress(Exception):  # not all file systems know; the report says when it was trained
            time = self.filesystem.modified(path).timestamp()
            os.utime(to, (time, time))

    def _ask(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Calls the file system; what it raises says which address, on one line."""
        try:
            return function(*arguments, **named)
        except FileNotFoundError:
            raise
        except MemoryError:
            raise
        except Exception as error:  # each file system raises its own kind
            if isinstance(error, OSError) and _is_of_this_disk(error):
                raise
            raise not_reached(self.address, error) from None


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


def _is_of_this_disk(error: OSError) -> bool:
    """Whether it is the cache that failed, and not the address."""
    place = str(error.filename or "")
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or place.startswith(str(cache_folder()))


def _mark(info: Mapping[str, Any]) -> list[str]:
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return [str(int(info.get("size") or 0)), tag]
