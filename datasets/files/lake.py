"""Lake tables: folders of which a log says which files, and which rows of them, are live.

Delta and Iceberg tables are read through `deltalake` and `pyiceberg`, at one version. Their files
are never read without that log, since they also hold rows that were removed.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import fsspec
import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile, LakePart, is_address, is_partition
from mmoe.datasets.files.remote import not_reached
from mmoe.datasets.rows.locations import MissingColumnError

# Kind of table: the module that reads it, the package and the extra that it needs
_READERS = MappingProxyType(
    {
        "Delta": ("mmoe.datasets.files.delta_tables", "deltalake", "delta"),
        "Iceberg": ("mmoe.datasets.files.iceberg_tables", "pyiceberg", "iceberg"),
    }
)
_VERSION = re.compile(r"(.+)@(\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_METADATA = re.compile(r"(v\d+|\d+-[0-9a-fA-F-]{36})(\.gz)?\.metadata\.json(\.gz)?")
_UNLISTED = ("http", "https", "ftp")  # servers whose folders are pages, if anything


class Table(Protocol):
    """A table at one version.

    Attributes:
        version: Of Delta; of Iceberg the snapshot.
        id: Tells it from another table that stood in the same place.
        schema: Of its rows.
        files: Addresses of the live files, each with a digest of what the table says about it.
    """

    version: int
    id: str
    schema: pa.Schema
    files: Mapping[str, str]

    def read(self, address: str, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Yields the live rows of one file, about so many at a time, with these columns."""
        ...


def split_version(path: str) -> tuple[str, int | None]:
    """Splits what names a version of a table into both; None: no version is named.

    Example:
        >>> split_version("lake/clicks@12"), split_version("logs/clicks.csv")
        (('lake/clicks', 12), ('logs/clicks.csv', None))
    """
    match = _VERSION.fullmatch(path)
    return (path, None) if match is None else (match[1], int(match[2]))


def at_version(path: str, version: object) -> str:
    """Returns the path of a table at a version; one that names a version already stays.

    Example:
        >>> at_version("lake/clicks", 12), at_version("lake/clicks@3", 12)
        ('lake/clicks@12', 'lake/clicks@3')
    """
    return path if split_version(path)[1] is not None else f"{path}@{version}"


def own_source(file: DataFile) -> str:
    """Returns what names a file's rows for another reader: of a table's file the whole table."""
    return str(file) if file.lake is None else f"{file.lake.table}@{file.lake.version}"


def kind_of_table(path: str) -> str | None:
    """Returns `Delta`, `Iceberg` or `Hudi` where a folder is such a table, or its metadata file.

    Raises:
        ValueError: Nobody can say: the folder is there, but cannot be listed, or not be reached.
    """
    if _METADATA.fullmatch(path.rstrip("/").rpartition("/")[2]):
        return "Iceberg"
    try:
        return _kind_by(lambda name: names_in(path, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    # Each file system raises its own kind. To go on would be to read what may be a table's files
    except Exception as error:
        raise not_reached(path, error) from None


def table_files(path: str, kind: str, version: int | None = None) -> list[DataFile]:
    """Lists the live files of a table, in their log's terms.

    Args:
        path: The table's folder, or address.
        kind: Of the table.
        version: None: the current one.

    Raises:
        ValueError: The table's package is not installed, or cannot read something that the table
            uses, or the version is not there, or it has no rows.
    """
    table = _open(path, kind, version)
    if not table.files:
        raise ValueError(f"{path}: the {kind} table holds no rows at version {table.version}")
    for file in table.files:
        if not is_address(file) and not Path(file).exists():
            raise ValueError(
                f"{path}: version {table.version} of the {kind} table needs {file}, which is gone "
                "(vacuumed, or moved without its table); name a later version, or bring it back"
            )
    return [
        DataFile(file, lake=LakePart(kind, path, table.version, table.id, digest))
        for file, digest in table.files.items()
    ]


def refuse_inside(path: str) -> None:
    """Refuses a file or folder inside a lake table: its rows may have been removed.

    Raises:
        ValueError: It is inside one; names the table.
    """
    for folder in _folders_above(path):
        kind = kind_of_table(folder)
        if kind is not None:
            raise ValueError(
                f"{path}: is inside the {kind} table {folder}, whose files also hold rows that "
                f"were removed; name the table: {folder}"
            )


def refuse_tables_below(folder: str, names: Iterable[str]) -> None:
    """Refuses a folder some of whose files are of a lake table.

    Args:
        folder: What the user named.
        names: Of all files below it, as seen from it.

    Raises:
        ValueError: There is a table below; names it.
    """
    for name in names:
        above, marker, _ = name.rpartition("/")[0].partition("_delta_log")
        if not marker:
            above, marker, _ = name.rpartition("/")[0].partition(".hoodie")
        if not marker and _METADATA.fullmatch(name.rpartition("/")[2]):
            above, marker = name.rpartition("metadata/")[0], "metadata"
        if marker:
            table = f"{folder.rstrip('/')}/{above}".rstrip("/")
            raise ValueError(
                f"{folder}: holds a lake table, {table}, whose files also hold rows that were "
                "removed; name the table itself, several as a list"
            )


@contextmanager
def one_line(what: Callable[[str], str]) -> Generator[None]:
    """Turns what a table's package raises into a ValueError; those of our own stay.

    The packages have a class for each kind of failure, some of which are private.

    Args:
        what: Makes the line of the reason.
    """
    try:
        yield
    except (Refused, MemoryError):
        raise
    except Exception as error:
        raise ValueError(what(" ".join(_COLOURS.sub("", str(error)).split())[:200])) from None


class Refused(ValueError):
    """A refusal in words of our own."""


def lake_columns(file: DataFile) -> list[str]:
    """Lists the columns of the table that a file belongs to."""
    return _table_of(file).schema.names


def lake_schema(file: DataFile) -> pa.Schema:
    """Returns the columns of the table that a file belongs to, and their types."""
    return _table_of(file).schema


def read_lake(file: DataFile, columns: list[str]) -> pa.Table:
    """Reads the live rows of a file, `columns` in their order."""
    parts = list(iter_lake(file, columns, 1 << 16))
    return pa.concat_tables(parts) if parts else lake_schema(file).empty_table().select(columns)


def iter_lake(file: DataFile, columns: list[str], rows: int) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, at most `rows` at a time.

    Args:
        file: A live one of a table.
        columns: Only these, in this order.
        rows: Most rows of one table.
    """
    table = _table_of(file)
    names = table.schema.names
    there = set(names)
    for column in columns:
        if column not in there:
            raise MissingColumnError(column, names, str(file))
    schema = pa.schema([table.schema.field(name) for name in columns or names[:1]])
    for part in table.read(file.address, schema.names, rows):
        for start in range(0, part.num_rows, rows):
            yield _cast(part.slice(start, rows), schema, file).select(columns)


def _cast(table: pa.Table, schema: pa.Schema, file: DataFile) -> pa.Table:
    """Files of a table may be older than its types."""
    columns = []
    for field in schema:
        column = table[field.name]
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise ValueError(
                f"{file}: column {field.name!r} holds {column.type}, but {field.type} in its table "
                f"({' '.join(str(error).split())[:200]}); rewrite the file"
            ) from None
    return pa.Table.from_arrays(columns, schema=schema)


def _table_of(file: DataFile) -> Table:
    assert file.lake is not None, "it is of a table"
    return _at(*(getattr(file.lake, name) for name in ("kind", "table", "version", "id")))


@lru_cache(maxsize=16)
def _at(kind: str, path: str, version: int, table_id: str) -> Table:
    """A version never changes; another table in its place has another id."""
    table = _open(path, kind, version)
    if table.id != table_id:
        raise ValueError(f"{path}: was replaced by another table while it was read; start again")
    return table


def _open(path: str, kind: str, version: int | None) -> Table:
    if kind not in _READERS:
        raise ValueError(
            f"{path}: is a Hudi table, whose folder also holds rows that were removed, and which "
            "mmoe does not read; export its rows to Parquet, such as with Spark: "
            "spark.read.format('hudi').load(TABLE).write.parquet(FOLDER)"
        )
    module, package, extra = _READERS[kind]
    try:
        import_module(package)
    except ImportError:
        raise ValueError(
            f"{path}: is {'an' if kind == 'Iceberg' else 'a'} {kind} table, whose folder also "
            f"holds rows that were removed; to read its live rows, pip install 'mmoe[{extra}]'"
        ) from None
    return import_module(module).open_table(path, version)


def _kind_by(names_in: Callable[[str], list[str]]) -> str | None:
    """By what lies in the folders that say so."""
    if "_delta_log" in (there := names_in("")):
        return "Delta"
    if ".hoodie" in there:
        return "Hudi"
    if "metadata" in there:
        for name in names_in("metadata"):
            if name == "version-hint.text" or _METADATA.fullmatch(name):
                return "Iceberg"
    return None


def names_in(path: str, below: str) -> list[str]:
    """Names the files and folders in a folder of a table; of a file none."""
    if not is_address(path):
        folder = Path(path, below)
        if below == "":  # a look at three names costs less than a list of ten thousand
            return [n for n in ("_delta_log", ".hoodie", "metadata") if (folder / n).is_dir()]
        return [found.name for found in folder.iterdir()]
    filesystem, inside = fsspec.url_to_fs(path)
    folder = f"{inside.rstrip('/')}/{below}".rstrip("/")
    if not filesystem.isdir(folder):
        return []
    return [str(n).rstrip("/").rpartition("/")[2] for n in filesystem.ls(folder, detail=False)]


def _folders_above(path: str) -> list[str]:
    """Folders that may be the table of a file; at an address those that a request may be for."""
    if not is_address(path):
        return [str(folder) for folder in Path(path).absolute().parents]
    if path.startswith(_UNLISTED):
        return []
    found, above = [], path.rstrip("/").rpartition("/")[0]
    while is_partition(above.rpartition("/")[2]):
        above = above.rpartition("/")[0]
    found.append(above)
    if above.endswith("/data"):  # where Iceberg has its files
        found.append(above.removesuffix("/data"))
    return found
