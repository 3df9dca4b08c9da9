"""`Store`: a folder that is written to, on this machine or at an address that fsspec knows."""

import errno
import hashlib
import io
import posixpath
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.files.data_file import is_address, is_partition
from mmoe.datasets.files.remote import RemoteFolder
from mmoe.run.atomic_files import (
    is_temporary,
    not_written,
    put_in_place,
    remove_dead,
    temporary_beside,
)
from mmoe.run.locks import locked

STAGING = "_staging"  # what is being written, until all of it is there
REJECTED = "_rejected"  # what was not what was expected of it
_LOCK = f"{STAGING}/.lock"
_BLOCK = 1 << 22  # bytes of a file that are looked at at a time


class Store(ABC):
    """A folder of files by their names in it, `day=2024-01-31/00000-log.parquet`.

    Each file is there whole or not at all, whoever looks and whoever dies meanwhile.

    Attributes:
        address: What the user calls it.
    """

    address: str
    _locked: IO[bytes] | None = None

    @abstractmethod
    def names(self) -> list[str]:
        """Lists what is there: files, folders of partitions looked into, and what was begun.

        A folder that is neither ends in a slash.
        """

    @abstractmethod
    def folders(self) -> list[str]:
        """Lists the folders in it, of partitions and others."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Returns whether there is a file, or a folder, of that name."""

    @abstractmethod
    def open(self, name: str) -> Any:
        """Opens a file to be read in pieces; FileNotFoundError where there is none."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Returns a small file's bytes; FileNotFoundError where there is none."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""

    @abstractmethod
    def begin(self, name: str) -> Path:
        """Returns where on this machine a large file is written before `put` gives it its name."""

    @abstractmethod
    def put(self, written: Path, name: str) -> None:
        """Gives a file that was begun its name; FileNotFoundError where somebody removed it."""

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Names a file otherwise, in the place of one that may be there."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, or all that lies below a folder; nothing where there is neither."""

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

    @abstractmethod
    def lock(self) -> None:
        """Keeps other processes from writing into the folder until this one ends.

        Raises:
            ValueError: One of them is writing.
        """

    def unlock(self) -> None:
        """Lets others in again."""
        if self._locked is not None:
            self._locked.close()


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


class LocalStore(Store):
    """A folder of this machine; a file is written beside its name and moved there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, str(folder)

    def names(self) -> list[str]:
        """Lists what is there, but for what other calls have begun."""
        found = (
            path.relative_to(self.folder).as_posix() + "/" * path.is_dir()
            for path in _entries(self.folder)
        )
        return sorted(
            name for name in found if name != _LOCK and not is_temporary(posixpath.basename(name))
        )

    def folders(self) -> list[str]:
        """Lists the folders in it."""
        return [path.name for path in self.folder.iterdir() if path.is_dir()]

    def has(self, name: str) -> bool:
        """Returns whether there is a file, or a folder, of that name."""
        return (self.folder / name).exists()

    def open(self, name: str) -> Any:
        """Opens a file to be read."""
        return (self.folder / name).open("rb")

    def read(self, name: str) -> bytes:
        """Returns a small file's bytes."""
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
        """Returns a place beside the file's own."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return temporary_beside(path)

    def put(self, written: Path, name: str) -> None:
        """Gives a file that was begun its name."""
        put_in_place(written, self.folder / name)

    def move(self, name: str, to: str) -> None:
        """Names a file otherwise."""
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
        """
        path = self.folder / _LOCK
        path.parent.mkdir(parents=True, exist_ok=True)
        self._locked = locked(
            path,
            f"--output {self.folder}: another mmoe score writes into it; wait until it ends, or "
            "name another folder",
        )
        for folder in (self.folder, *(p for p in self.folder.rglob("*") if p.is_dir())):
            remove_dead(folder)


class AddressStore(RemoteFolder, Store):
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
        """Returns a place on this machine."""
        return Path(self.room.name) / hashlib.sha256(name.encode(errors="replace")).hexdigest()

    def put(self, written: Path, name: str) -> None:
        """Sends a file that was begun."""
        super().put(written, name)
        written.unlink()

    def remove(self, name: str) -> None:
        """Removes a file, or all that lies below a folder."""
        for file in self.files(name):
            super().remove(file)

    def lock(self) -> None:
        """Nobody is kept out: object stores have no locks that end with a process."""


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


def digest_of(path: Path) -> tuple[int, str]:
    """Returns a file's bytes and SHA-256.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), found


def _entries(folder: Path) -> Iterator[Path]:
    """What a folder holds, and in it those of partitions, and of what is not published."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and (is_partition(path.name) or path.name in (STAGING, REJECTED)):
            yield from _entries(path)
        else:
            yield path
