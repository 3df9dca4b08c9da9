"""`DataFile`: where a file of rows lies, and what its folders' names say about its rows."""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import fsspec

_PARTITION = re.compile(r"([A-Za-z_][A-Za-z0-9_\-]*)=(.*)")
_GLOB = re.compile(r"[*?\[]")
# What object stores call it; an ETag is one too, of the content as it was uploaded
_CHECKSUMS = ("md5Hash", "content_md5", "ETag", "etag")
_UTF8 = ("utf-8", "utf-8-sig", "ascii")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # what Hive and Spark call the folder of nulls


@dataclass(frozen=True)
class LakePart:
    """Statement of a lake table about one of its files."""

    kind: str  # of the table: Delta or Iceberg
    table: str  # its folder or address
    version: int  # at which it is read; of Iceberg the snapshot
    id: str  # tells it from another table that stood in the same place
    digest: str  # of which rows of the file are live, and what the log says about them


@dataclass(frozen=True)
class CsvForm:
    """Form of a CSV file, as far as a person told it."""

    names: tuple[str, ...] | None = None  # of all columns, in order
    # Between cells; of several characters: quotes are characters like any other then. None: found
    # by the first line.
    delimiter: str | None = None
    encoding: str | None = None  # of the text, as Python calls it; None: UTF-8
    # Whether the first line is one; then `names` take the place of what it says. None: it is,
    # unless names are given that are not its own.
    header: bool | None = None

    @property
    def has_quotes(self) -> bool:
        """Whether quotes hold a cell together."""
        return self.delimiter is None or (len(self.delimiter) == 1 and self.delimiter.isascii())

    @property
    def is_rewritten(self) -> bool:
        """Whether bytes have to become others before Arrow reads them."""
        name = "utf-8" if self.encoding is None else codecs.lookup(self.encoding).name
        return not self.has_quotes or name not in _UTF8


@dataclass(frozen=True)
class DataFile:
    """A file of rows: a local path, or an address that fsspec knows (`s3://…`).

    Example:
        >>> file = DataFile("logs/day=2024-01-31/country=DE/part-0.parquet")
        >>> file.partitions, file.name
        ({'day': '2024-01-31', 'country': 'DE'}, 'part-0.parquet')
    """

    address: str  # where it is
    csv: CsvForm = CsvForm()  # how it is written, where it is a CSV file
    # Column of lists, of which each item is a row; None: rows are those of the file
    candidates: str | None = None
    # Of the items of the last column that is asked for, what is read; None: all
    fields: tuple[str, ...] | None = None
    # Columns that rows are known to have: of candidates where every list is empty, and says nothing
    # of them
    known: tuple[str, ...] = ()
    # Of a lake table's live file, what its table says; None: the file is read for itself
    lake: LakePart | None = None

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """Last part of the address."""
        return self.address.rstrip("/").rpartition("/")[2]

    @property
    def absolute(self) -> str:
        """Whole address, with slashes."""
        if is_address(self.address):
            return self.address
        return Path(self.address).absolute().as_posix()

    @property
    def partitions(self) -> dict[str, str | None]:
        """Columns named by folders such as `day=2024-01-31`; None for Hive's folder of nulls.

        Of a lake table the log says them.
        """
        found: dict[str, str | None] = {}
        if self.lake is not None:
            return found
        for part in Path(self.address).parts[:-1]:
            match = _PARTITION.fullmatch(part)
            if match is not None:
                value = unquote(match[2])
                found[match[1]] = None if value == _NO_VALUE else value
        return found

    def open(self) -> Any:
        """Opens the file for reading bytes.

        Raises:
            OSError: It is not there, or cannot be read.
        """
        if is_address(self.address):
            filesystem, path = fsspec.url_to_fs(self.address)
            return filesystem.open(path, "rb")
        return Path(self.address).open("rb")

    def size(self) -> int:
        """Returns the number of bytes.

        Raises:
            OSError: It is not there.
        """
        return self.state()[0]

    def state(self) -> tuple[int, object]:
        """Returns what changes when the file is written anew: bytes, and time, inode or tag.

        Raises:
            OSError: It is not there.
        """
        if not is_address(self.address):
            found = Path(self.address).stat()
            return found.st_size, (found.st_mtime_ns, found.st_ino)
        filesystem, path = fsspec.url_to_fs(self.address)
        filesystem.invalidate_cache(filesystem._parent(path))  # a listing may be old
        info = filesystem.info(path)
        return int(info["size"]), str(sorted(info.items(), key=str))

    def identity(self) -> object:
        """Returns what names of one file have in common: device and inode, or the whole address."""
        path = str(without_protocol(self.address))
        if is_address(path):
            filesystem, inside = fsspec.url_to_fs(path)
            return id(filesystem), inside  # fsspec keeps one for each place and its options
        try:
            found = Path(path).stat()
        except OSError:  # whoever reads it says that it is gone
            return str(Path(path).resolve())
        # Some network drives number nothing
        return (found.st_dev, found.st_ino) if found.st_ino else str(Path(path).resolve())

    def ranges(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes of each span, from its first up to, not including, its second.

        Raises:
            OSError: It is not there.
        """
        if is_address(self.address):
            filesystem, path = fsspec.url_to_fs(self.address)
            return [bytes(filesystem.cat_file(path, start, stop)) for start, stop in spans]
        found = []
        with self.open() as file:
            for start, stop in spans:
                file.seek(start)
                found.append(file.read(stop - start))
        return found

    def checksum(self) -> bytes | None:
        """Returns the file system's checksum of the content; local ones keep none.

        Raises:
            OSError: It is not there.
        """
        if not is_address(self.address):
            return None
        filesystem, path = fsspec.url_to_fs(self.address)
        about = filesystem.info(path)
        return next((f"{key} {about[key]}".encode() for key in _CHECKSUMS if about.get(key)), None)


def is_partition(name: str) -> bool:
    """Returns whether a folder's name is a column and its value.

    Example:
        >>> is_partition("day=2024-01-31"), is_partition("logs")
        (True, False)
    """
    return _PARTITION.fullmatch(name) is not None


def without_protocol(path: str | Path) -> str | Path:
    """Returns the path that an address of this machine's own files means, else what was given.

    Example:
        >>> without_protocol("file:///data/scores"), without_protocol("s3://bucket/scores")
        ('/data/scores', 's3://bucket/scores')
    """
    if str(path).startswith(("file://", "local://")):
        return str(fsspec.url_to_fs(str(path))[1])
    return path


def is_address(path: str) -> bool:
    """Returns whether fsspec has to resolve it."""
    return "://" in path


def absolute(path: str | Path) -> str:
    """Returns the whole path, for who starts in another folder; an address as it is."""
    return str(path) if is_address(str(path)) else str(Path(path).absolute())


def is_hidden(name: str) -> bool:
    """Returns whether a name is of no data: editors and Spark leave `._SUCCESS.crc`, `_SUCCESS`.

    Example:
        >>> is_hidden("_staging"), is_hidden("day=2024-01-31")
        (True, False)
    """
    return name.startswith((".", "_"))


def is_hidden_match(match: str, pattern: str) -> bool:
    """Returns whether a match of a glob is hidden, itself or by a folder below what the user named.

    Example:
        >>> is_hidden_match("out/_staging/a.parquet", "out/*/*.parquet")
        True
        >>> is_hidden_match("_out/a.parquet", "_out/*.parquet")
        False
    """
    parts = PurePosixPath(pattern).parts
    fixed = next((n for n, part in enumerate(parts) if is_glob(part)), len(parts))
    return any(map(is_hidden, PurePosixPath(match).parts[fixed:]))


def is_glob(path: str) -> bool:
    """Returns whether it holds a wildcard."""
    return _GLOB.search(path) is not None


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Makes a sort key by which part-2 comes before part-10."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
