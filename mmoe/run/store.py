"""Stores of outputs: a folder here or at an address, and what must not be written over."""

import errno
import hashlib
import io
import posixpath
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import BaseFileLock
from fsspec.implementations.local import LocalFileSystem

from mmoe.datasets.files.data_file import DataFile, is_address, is_hidden, is_partition
from mmoe.datasets.files.remote import RemoteFolder
from mmoe.run.atomic_files import (
    is_temporary,
    not_written,
    put_in_place,
    remove_dead,
    temporary_beside,
)
from mmoe.run.directory import RunDirectory
from mmoe.run.folder_claim import lock_file

STAGING = "_staging"  # what is being written, until all of it is there
REJECTED = "_rejected"  # what was not what was expected of it
_LOCK = f"{STAGING}/.lock"
_BLOCK = 1 << 22  # bytes of a file that are looked at at a time


class _Readable(ABC):
    """Base of stores: what all of them say of their files."""

    @abstractmethod
    def open(self, name: str) -> Any:
        """Opens a file to be read in pieces; FileNotFoundError where there is none."""

    def digest(self, name: str) -> tuple[int, str] | None:
        """Returns a file's bytes and SHA-256, read block by block; None where it is not there."""
        found, size = hashlib.sha256(), 0
        try:
            with self.open(name) as file:
                while block := file.read(_BLOCK):
                    found.update(block)
                    size += len(block)
        except FileNotFoundError:
            return None
        return size, found.hexdigest()

    def schema(self, name: str) -> pa.Schema:
        """Returns a Parquet file's, with its notes; raises what pyarrow does where it is none."""
        with self.open(name) as file:
            return pq.read_schema(file)

    def rows(self, name: str) -> int:
        """Returns how many rows a Parquet file has."""
        with self.open(name) as file:
            return int(pq.read_metadata(file).num_rows)

    def notes(self, name: str) -> Mapping[bytes, bytes]:
        """Returns the metadata of a Parquet file, what was added at its end too."""
        with self.open(name) as file:
            return pq.read_metadata(file).metadata or {}


class LocalStore(_Readable):
    """A folder of this machine; a file is written beside its name and moved there."""

    _locked: BaseFileLock | None = None

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, str(folder)

    def names(self) -> list[str]:
        """Lists the files, partitions' folders included, but not those that others are writing.

        A folder that is none of these ends in a slash.
        """
        found = (
            path.relative_to(self.folder).as_posix() + "/" * path.is_dir()
            for path in _entries(self.folder)
        )
        return sorted(
            name for name in found if name != _LOCK and not is_temporary(posixpath.basename(name))
        )

    def folders(self) -> list[str]:
        """Lists the folders in it, of partitions and others."""
        return [path.name for path in self.folder.iterdir() if path.is_dir()]

    def has(self, name: str) -> bool:
        """Returns whether there is a file, or a folder, of that name."""
        return (self.folder / name).exists()

    def open(self, name: str) -> Any:
        """Opens a file to be read in pieces; FileNotFoundError where there is none."""
        return (self.folder / name).open("rb")

    def read(self, name: str) -> bytes:
        """Returns a small file's bytes; FileNotFoundError where there is none."""
        return (self.folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        self._copy(io.BytesIO(content), name)

    def _copy(self, content: BinaryIO, name: str) -> None:
        written = self.begin(name)
        try:
            with written.open("wb") as file:
                shutil.copyfileobj(content, file)
            put_in_place(written, self.folder / name)
        except OSError as error:
            raise not_written(self.folder / name, error) from None
        finally:
            written.unlink(missing_ok=True)

    def begin(self, name: str) -> Path:
        """Returns where a large file is written before `put` gives it its name, beside that."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return temporary_beside(path)

    def put(self, written: Path, name: str) -> None:
        """Gives a file that was begun its name; FileNotFoundError where somebody removed it."""
        put_in_place(written, self.folder / name)

    def move(self, name: str, to: str) -> None:
        """Names a file otherwise, in the place of one that may be there."""
        path = self.folder / to
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self.folder / name).replace(path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # A partition, or _staging, is a link to another disk
            with self.open(name) as file:
                self._copy(file, to)
            (self.folder / name).unlink()

    def remove(self, name: str) -> None:
        """Removes a file, with folders of partitions that it leaves empty, or a whole folder.

        A link to a folder stays, and that folder too: only what lies in it goes.
        """
        path = self.folder / name
        if path.is_symlink() and path.is_dir():
            for entry in path.iterdir():
                self.remove(f"{name}/{entry.name}")
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # an empty folder harms nobody
            for above in path.parents:
                if above == self.folder or above.is_symlink() or any(above.iterdir()):
                    break
                above.rmdir()

    def lock(self) -> None:
        """Keeps others out, by a lock that ends with this process, and removes what dead ones left.

        Where the file system knows no locks, nobody is kept out.

        Raises:
            ValueError: One of them is writing.
        """
        path = self.folder / _LOCK
        path.parent.mkdir(parents=True, exist_ok=True)
        self._locked = lock_file(
            path,
            f"--output {self.folder}: another mmoe score writes into it; wait until it ends, or "
            "name another folder",
        )
        for folder in (self.folder, *(p for p in self.folder.rglob("*") if p.is_dir())):
            remove_dead(folder)

    def unlock(self) -> None:
        """Lets others in again."""
        if self._locked is not None:
            self._locked.release()


class AddressStore(RemoteFolder, _Readable):
    """A folder of an object store; a file is written on this machine and sent in one piece.

    Object stores show a file when its last byte has come: a multipart upload that is never
    completed shows nothing.

    Args:
        address: As the user says it.
        option: That named it; starts error messages.
    """

    def __init__(self, address: str, option: str = "--output") -> None:
        super().__init__(address, option)
        self.room = tempfile.TemporaryDirectory(prefix="mmoe-")

    def names(self) -> list[str]:
        """Lists what is there."""
        return sorted(self.files())

    def begin(self, name: str) -> Path:
        """Returns where on this machine a large file is written before `put` sends it."""
        return Path(self.room.name) / hashlib.sha256(name.encode(errors="replace")).hexdigest()

    def put(self, written: Path, name: str) -> None:
        """Sends a file that was begun."""
        super().put(written, name)
        written.unlink()

    def remove(self, name: str) -> None:
        """Removes a file, or all that lies below a folder; nothing where there is neither."""
        for file in self.files(name):
            super().remove(file)

    def lock(self) -> None:
        """Nobody is kept out: object stores have no locks that end with a process."""

    def unlock(self) -> None:
        """Nobody was kept out."""


# A folder of files by their names in it, `day=2024-01-31/00000-log.parquet`, called `address` by
# the user. Each file is there whole or not at all, whoever looks and whoever dies meanwhile.
Store = LocalStore | AddressStore


def store_at(output: str | Path) -> Store:
    """Returns the folder that a user names.

    Example:
        >>> type(store_at("scores")).__name__, type(store_at("memory://scores")).__name__
        ('LocalStore', 'AddressStore')
    """
    return AddressStore(str(output)) if is_address(str(output)) else LocalStore(Path(output))


def place_of(output: str | Path, option: str = "--output") -> tuple[Store, str]:
    """Returns the folder that a file lies in, and its name there.

    Args:
        output: As the user says it.
        option: That named it; starts messages about an address.

    Example:
        >>> store, name = place_of("nightly/scores.parquet")
        >>> store.address, name
        ('nightly', 'scores.parquet')
    """
    if not is_address(str(output)):
        path = Path(output)
        return LocalStore(path.parent), path.name
    name = str(output).rpartition("/")[2]
    return AddressStore(str(output)[: -len(name)], option), name


def digest_of(path: Path) -> tuple[int, str]:
    """Returns a file's bytes and SHA-256.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), found


def _entries(folder: Path) -> Iterator[Path]:
    """Lists a folder and those of its partitions, and what is not published."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and (is_partition(path.name) or path.name in (STAGING, REJECTED)):
            yield from _entries(path)
        else:
            yield path


# Which file it is, whatever it is called: links, `..` and other cases of letters lead to the same
_Identity = tuple[int, int]


def _identity(path: Path) -> _Identity | None:
    """Returns device and inode of a file; None where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _identities(paths: Iterable[Path]) -> dict[_Identity, Path]:
    """Returns the files that are there, each under one of its names."""
    return {key: path for path in paths if (key := _identity(path)) is not None}


def local_path(file: DataFile) -> Path | None:
    """Returns where a file lies on this machine; None where it is fetched from elsewhere."""
    if not is_address(file.address):
        return Path(file.address)
    # Of a chain such as simplecache::file://… the last link says where the bytes are
    filesystem, path = fsspec.url_to_fs(file.address.rpartition("::")[2])
    return Path(path) if isinstance(filesystem, LocalFileSystem) else None


def check_not_read(
    output: str | Path,
    run: RunDirectory,
    files: Collection[DataFile],
    source: str | Path,
    *,
    folder: bool,
) -> None:
    """Refuses a place of the run, one that holds what is read, and one that would be read next.

    Args:
        output: A file or a folder to write, or the address of one.
        run: That scores.
        files: That are read.
        source: What the user called them.
        folder: Whether `output` is one.

    Raises:
        ValueError: Says which of the files it is.
    """
    if is_address(str(output)):
        return _check_not_read_at(str(output), files, str(source), folder)
    output = Path(output)
    check_not_of_run(output, run)
    read = [path for file in files if (path := local_path(file)) is not None]
    place = _identity(output) or (-1, -1)
    found = None if folder else _identities(read).get(place)
    if found is not None:
        raise ValueError(
            f"--output {output}: is {found}, which --input {source} reads; name another file"
        )
    for path in read if folder else ():
        if _identity(path.parent) == place:
            raise ValueError(
                f"--output {output}: holds {path.name}, which --input {source} reads; name another "
                "folder"
            )
    if _lies_in(output, Path(str(source))):
        raise ValueError(
            f"--output {output}: lies in --input {source}, where the scores would be read as rows "
            f"next time; name a {'folder' if folder else 'file'} outside it"
        )


def _check_not_read_at(output: str, files: Collection[DataFile], source: str, folder: bool) -> None:
    filesystem, place = fsspec.url_to_fs(output)
    place = place.rstrip("/")
    for file in files:
        if not is_address(file.address):
            continue
        other, path = fsspec.url_to_fs(file.address)
        if type(other) is type(filesystem) and (
            path.rpartition("/")[0] == place if folder else path == place
        ):
            raise ValueError(
                f"--output {output}: holds {file.name}, which --input {source} reads; name another "
                "place"
            )
    if is_address(source):
        other, around = fsspec.url_to_fs(source)
        inside = type(other) is type(filesystem) and place.startswith(f"{around.rstrip('/')}/")
        if inside and not any(map(is_hidden, place[len(around.rstrip("/")) :].split("/"))):
            raise ValueError(
                f"--output {output}: lies in --input {source}, where the scores would be read as "
                "rows next time; name a place outside it"
            )


def _lies_in(output: Path, folder: Path) -> bool:
    """Whether the files of a folder are among those that another one means."""
    place, around = _real(output), _real(folder)
    if not around.is_dir() or not place.is_relative_to(around):
        return False
    return not any(map(is_hidden, place.relative_to(around).parts))


def _real(path: Path) -> Path:
    """Follows links."""
    try:
        return path.resolve()
    except RuntimeError:  # what Python before 3.13 says of a loop
        raise ValueError(
            f"{path}: is a link that leads back to itself; name another place"
        ) from None


def check_not_of_run(output: Path, run: RunDirectory) -> None:
    """Refuses a file of a run, and any place in the folders that training writes and clears.

    Raises:
        ValueError: Says what it is.
    """
    folders = (run.checkpoint, run.vocabulary, run.tensorboard, run.profile)
    place = _real(output)
    for folder in folders:
        if place == folder.resolve() or place.is_relative_to(folder.resolve()):
            raise ValueError(
                f"--output {output}: lies in {folder}, where the run itself is kept; name another "
                "place"
            )
    own = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    own += [path for path in run.path.iterdir() if path.suffix in (".json", ".yaml")]
    own.append(run.path / "predictions.parquet")  # of a day of a backtest
    found = _identities(own).get(_identity(output) or (-1, -1))
    if found is not None:
        raise ValueError(
            f"--output {output}: is {found}, a file of the run itself; name another file"
        )
