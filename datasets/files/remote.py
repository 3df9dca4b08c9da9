"""Folders, files and globs on any file system that fsspec knows."""

import errno
import posixpath
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from mmoe.datasets.files.data_file import DataFile, is_glob, is_hidden_match, natural_key

T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2"}


def not_reached(address: str, error: Exception) -> ValueError:
    """Says on one line what a file system raised, and how it is mended."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, ImportError | ValueError):
        return ValueError(
            f"{address}: cannot be opened ({reason}); check the protocol, or install its fsspec "
            "package"
        )
    return ValueError(
        f"{address}: cannot be reached ({reason}); check the address and the credentials"
    )


class RemoteFolder:
    """A folder at an address; what its file system raises is one line, which says the address.

    Args:
        address: As the user says it.
        option: That named it, such as `--output`; starts error messages.

    Raises:
        ValueError: fsspec does not know the protocol, or a package is missing.

    Example:
        >>> folder = RemoteFolder("memory://runs/mine")
        >>> folder.write("notes/a.txt", b"some")
        >>> list(folder.files()), folder.read("notes/a.txt")
        (['notes/a.txt'], b'some')
    """

    def __init__(self, address: str, option: str = "") -> None:
        self.address = address if address.endswith("://") else address.rstrip("/")
        self._called = f"{option} {self.address}".strip()
        self.filesystem: Any
        self.filesystem, root = self.ask(fsspec.url_to_fs, self.address)
        self.root = str(root).rstrip("/")

    def files(self, name: str = "") -> dict[str, Mapping[str, Any]]:
        """Returns what the file system says of all files, or of those below a name; or none."""
        self.filesystem.invalidate_cache()
        try:
            found = self.ask(self.filesystem.find, self.path(name), detail=True)
        except FileNotFoundError:
            return {}
        start = len(self.root) + 1
        return {str(path)[start:]: info for path, info in found.items()}

    def folders(self) -> list[str]:
        """Names the folders in it; none where it is not there."""
        self.filesystem.invalidate_cache()
        try:
            found = self.ask(self.filesystem.ls, self.root, detail=True)
        except FileNotFoundError:
            return []
        paths = (str(info["name"]) for info in found if info["type"] == "directory")
        return [posixpath.basename(path.rstrip("/")) for path in paths]

    def has(self, name: str) -> bool:
        """Returns whether there is a file, or a folder, of that name."""
        self.filesystem.invalidate_cache()
        return bool(self.ask(self.filesystem.exists, self.path(name)))

    def read(self, name: str) -> bytes:
        """Returns a small file's bytes; FileNotFoundError where there is none."""
        return bytes(self.ask(self.filesystem.cat_file, self.path(name)))

    def open(self, name: str) -> Any:
        """Opens a file to be read in pieces; FileNotFoundError where there is none."""
        self.filesystem.invalidate_cache()
        return self.ask(self.filesystem.open, self.path(name), "rb")

    def get(self, name: str, to: Path) -> None:
        """Fetches a file; errors of this machine's disk are raised as they are."""
        with self.telling(own=to):
            self.filesystem.get_file(self.path(name), str(to))

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        self.make_room(name)
        self.ask(self.filesystem.pipe_file, self.path(name), content)

    def put(self, written: Path, name: str) -> None:
        """Sends a file; on an object store it is there whole, or not at all.

        Raises:
            FileNotFoundError: It is not there (any more), here.
        """
        self.make_room(name)
        self.ask(self.filesystem.put_file, str(written), self.path(name))

    def move(self, name: str, to: str) -> None:
        """Names a file otherwise; the store copies it."""
        # Not `mv`, which takes brackets in a name for a pattern
        self.make_room(to)
        self.ask(self.filesystem.cp_file, self.path(name), self.path(to))
        self.ask(self.filesystem.rm_file, self.path(name))

    def remove(self, name: str) -> None:
        """Removes a file."""
        self.ask(self.filesystem.rm_file, self.path(name))

    def path(self, name: str) -> str:
        """Returns what the file system calls a file."""
        return f"{self.root}/{name}" if name else self.root

    def make_room(self, name: str) -> None:
        """Makes the folder of a file, where there are folders.

        Object stores have none, and one that is asked for a folder might make a bucket.
        """
        protocol = self.filesystem.protocol
        if not ({protocol} if isinstance(protocol, str) else {*protocol}) & _OBJECT_STORES:
            folder = posixpath.dirname(self.path(name))
            self.ask(self.filesystem.makedirs, folder, exist_ok=True)

    def ask(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Calls the file system."""
        with self.telling():
            return function(*arguments, **named)

    @contextmanager
    def telling(self, own: Path | None = None) -> Generator[None]:
        """Says what a file system raises, of a file that is not there, nothing more.

        Args:
            own: A file of this machine that is written.
        """
        try:
            yield
        except FileNotFoundError as error:
            # Of a file it is an answer; s3fs says the same of a bucket that is not there. Its words
            # are looked for: paths, which may hold the word bucket, are all that others say
            if "bucket does not exist" not in str(error):
                raise
            raise not_reached(self._called, error) from None
        except MemoryError:
            raise
        except Exception as error:  # each file system raises its own kind
            if own is not None and isinstance(error, OSError):
                place = str(error.filename or "")
                if error.errno in _FULL or place.startswith(str(own.parent)):
                    raise
            raise not_reached(self._called, error) from None


def resolve_address(
    address: str, choose: Callable[[str, Iterable[str]], list[str]]
) -> list[DataFile]:
    """Lists the files that an address means.

    Args:
        address: Of a file, a folder or a glob, such as `s3://logs/day=*/*.parquet`.
        choose: The data files among names below a folder, in their order; given its address too.

    Raises:
        ValueError: The protocol is not known, its package is missing, or nothing is there.
    """
    try:
        filesystem, path = fsspec.url_to_fs(address)
        filesystem.invalidate_cache()
        if is_glob(path):
            found = map(str, filesystem.glob(path))
            matches = [match for match in found if not is_hidden_match(match, path)]
        else:
            matches = [path] if filesystem.exists(path) else []
        below: dict[str, list[str] | None] = {}  # by match; None: it is a file
        for match in sorted(map(str, matches), key=natural_key):
            start = len(match.rstrip("/")) + 1
            is_file = filesystem.isfile(match)
            below[match] = None if is_file else [str(f)[start:] for f in filesystem.find(match)]
    except Exception as error:  # each file system raises its own kind
        raise not_reached(address, error) from None
    if not matches:
        what = "no file matches; check the pattern" if is_glob(path) else "no such file"
        raise ValueError(f"{address}: {what}")
    files = []
    for match, names in below.items():
        if names is None:
            files.append(match)
            continue
        chosen = choose(str(filesystem.unstrip_protocol(match)), names)
        files += [f"{match.rstrip('/')}/{name}" for name in chosen]
    return [DataFile(str(filesystem.unstrip_protocol(file))) for file in dict.fromkeys(files)]
