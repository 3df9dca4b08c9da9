"""Lake tables: folders of which a log says which files, and which rows of them, are live.

Delta and Iceberg tables are read through `deltalake` and `pyiceberg`, at one version. Their files
are never read without that log, since they also hold rows that were removed.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import unquote

import fsspec
import numpy as np
import pyarrow as pa

from mmoe.datasets.files.data_file import (
    DataFile,
    LakePart,
    is_address,
    is_partition,
    natural_key,
    without_protocol,
)
from mmoe.datasets.files.parquet_files import iter_parquet, parquet_layout
from mmoe.datasets.files.remote import not_reached
from mmoe.datasets.rows.locations import refuse_missing

# Kind of table: the package and the extra that it needs
_PACKAGES = MappingProxyType({"Delta": ("deltalake", "delta"), "Iceberg": ("pyiceberg", "iceberg")})
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
    files: dict[str, str]

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
        return _kind_by_names(path)
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


def lake_schema(file: DataFile) -> pa.Schema:
    """Returns the columns of the table that a file belongs to, and their types."""
    return _table_of(file).schema


def iter_lake(file: DataFile, columns: list[str], rows: int) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, at most `rows` at a time.

    Args:
        file: A live one of a table.
        columns: Only these, in this order.
        rows: Most rows of one table.
    """
    table = _table_of(file)
    names = table.schema.names
    refuse_missing(columns, names, str(file))
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
    if kind not in _PACKAGES:
        raise ValueError(
            f"{path}: is a Hudi table, whose folder also holds rows that were removed, and which "
            "mmoe does not read; export its rows to Parquet, such as with Spark: "
            "spark.read.format('hudi').load(TABLE).write.parquet(FOLDER)"
        )
    package, extra = _PACKAGES[kind]
    try:
        import_module(package)
    except ImportError:
        raise ValueError(
            f"{path}: is {'an' if kind == 'Iceberg' else 'a'} {kind} table, whose folder also "
            f"holds rows that were removed; to read its live rows, pip install 'mmoe[{extra}]'"
        ) from None
    return (DeltaTable if kind == "Delta" else IcebergTable).open(path, version)


def _kind_by_names(path: str) -> str | None:
    there = names_in(path, "")
    if "_delta_log" in there:
        return "Delta"
    if ".hoodie" in there:
        return "Hudi"
    inside = names_in(path, "metadata") if "metadata" in there else []
    iceberg = any(name == "version-hint.text" or _METADATA.fullmatch(name) for name in inside)
    return "Iceberg" if iceberg else None


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


# Features of a table that what is below reads, or that say nothing about its rows
_READ_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


class DeltaTable:
    """A table at one version; see `mmoe.datasets.files.lake.Table`."""

    @classmethod
    def open(cls, path: str, version: int | None) -> "DeltaTable":
        """Reads the log of a table at a version, or the current one.

        Raises:
            ValueError: It cannot be read, has no such version, or uses what is not read here.
        """
        import deltalake

        if not is_address(path) and unquote(path) != path:  # it would read the log of that folder
            raise Refused(
                f"{path}: deltalake takes the name of this folder for {unquote(path)!r}; give the "
                "folder a name without %"
            )
        where = "" if version is None else f" at version {version}"
        with one_line(
            lambda reason: (
                f"{path}: the Delta table cannot be read{where} by deltalake "
                f"{deltalake.__version__} ({reason}); name a version that is there, or upgrade "
                "deltalake"
            )
        ):
            return cls(path, deltalake.DeltaTable(path, version=version))

    def __init__(self, path: str, table: Any) -> None:
        self.path, self.version, self.id = path, int(table.version()), str(table.metadata().id)
        self._refuse_features(table)
        self.schema = pa.schema(table.schema().to_arrow())
        self._partitions: dict[str, dict[str, Any]] = {}
        vectors = pa.table(table.deletion_vectors())
        names = map(_own_name, vectors["filepath"].to_pylist())
        kept = (one.values.to_numpy(zero_copy_only=False) for one in vectors["selection_vector"])
        self._kept = {n: np.asarray(one, bool) for n, one in zip(names, kept, strict=True)}
        self._read_actions(table)

    def _refuse_features(self, table: Any) -> None:
        """Refuses a table that says something about its rows that nobody would see to."""
        used = {*map(str, table.protocol().reader_features or ())} - _READ_FEATURES
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            used.add("columnMapping")
        else:
            used.discard("columnMapping")  # not in use
        if used:
            raise Refused(
                f"{self.path}: the Delta table uses {', '.join(sorted(used))}, which mmoe does not "
                "read; export its rows to a table or to Parquet without that"
            )

    def _read_actions(self, table: Any) -> None:
        """Finds the live files, in the order of their names, and what the log says about each."""
        self.files: dict[str, str] = {}
        actions = pa.table(table.get_add_actions(flatten=True))
        named = [name for name in actions.column_names if name.startswith("partition.")]
        listed = actions.select(["path", *named]).to_pylist()
        for action in sorted(listed, key=lambda action: natural_key(action["path"])):
            inside = unquote(action["path"])
            if is_address(inside) or inside.startswith("/"):
                raise Refused(
                    f"{self.path}: the Delta table refers to files of another one ({inside}), as a "
                    "shallow clone does, which mmoe does not read; copy its rows to a table"
                )
            address = f"{self.path.rstrip('/')}/{inside}"
            values = {name.removeprefix("partition."): action[name] for name in named}
            self._partitions[address] = values
            kept = self._kept.get(_own_name(inside))
            about = sha256(repr(sorted(values.items())).encode())
            about.update(b"" if kept is None else np.packbits(kept).tobytes())
            self.files[address] = about.hexdigest()[:16]

    def read(self, address: str, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Yields the live rows of one file; columns that are younger than it are null."""
        file, values = DataFile(address), self._partitions[address]
        there = [name for name in parquet_layout(file)[0].names if name not in values]
        own = [name for name in columns if name in there]
        kept_N, first = self._kept.get(_own_name(address)), 0
        # Of a file that has none of the columns some column counts the rows
        for table in iter_parquet(file, own or there[:1], rows):
            count = table.num_rows
            if kept_N is not None:
                kept = np.ones(count, bool)  # behind the end of the vector all rows are
                part_N = kept_N[first : first + count]
                kept[: len(part_N)] = part_N
                table = table.filter(pa.array(kept))
            first += count
            arrays = [
                table[name]
                if name in own
                else pa.repeat(
                    pa.scalar(values.get(name), self.schema.field(name).type), table.num_rows
                )
                for name in columns
            ]
            yield pa.table(arrays, names=columns)


def _own_name(path: str) -> str:
    """A file's last part, which the log makes unique."""
    return unquote(path).rpartition("/")[2]


_SUFFIX = re.compile(r"(\.gz)?\.metadata\.json(\.gz)?$")


class IcebergTable:
    """A table at one snapshot; see `mmoe.datasets.files.lake.Table`."""

    @classmethod
    def open(cls, path: str, version: int | None) -> "IcebergTable":
        """Reads the metadata of a table, or one of its metadata files, at a snapshot.

        Raises:
            ValueError: It cannot be read, has no such snapshot, lies elsewhere than it was written
                to, or uses what pyiceberg does not read.
        """
        import pyiceberg
        from pyiceberg.table import StaticTable

        def unread(reason: str) -> str:
            what = "equality deletes" if "quality delet" in reason else "the table as it is"
            return (
                f"{path}: pyiceberg {pyiceberg.__version__} cannot read {what} of this Iceberg "
                f"table ({reason}); rewrite its data files (rewrite_data_files), or export its rows"
            )

        with one_line(unread):
            return cls(path, StaticTable.from_metadata(_metadata_file(path)), version)

    def __init__(self, path: str, table: Any, version: int | None) -> None:
        self.path, self._table = path, table
        _refuse_moved(path, table.metadata.location)
        found = table.current_snapshot()
        current = 0 if found is None else int(found.snapshot_id)
        if version is None or version == current:
            self.version = current
        elif table.snapshot_by_id(version) is None:
            known = ", ".join(str(one.snapshot_id) for one in table.metadata.snapshots[-3:])
            raise Refused(
                f"{path}: the Iceberg table has no snapshot {version} (the latest: {known or '-'})"
            )
        else:
            self.version = version
        # Columns may have been renamed since the current snapshot; an earlier one has its own names
        scan = table.scan(snapshot_id=None if self.version == current else self.version)
        tasks = list(scan.plan_files()) if self.version else []
        self._tasks = {str(without_protocol(task.file.file_path)): task for task in tasks}
        self._projection = scan.projection()
        self.id = f"{table.metadata.table_uuid}, schema {self._projection.schema_id}"
        self.schema = self._projection.as_arrow()
        self.schema = pa.schema([pa.field(f.name, _bare(f.type)) for f in self.schema])
        self.files = {
            file: _digest(self._tasks[file]) for file in sorted(self._tasks, key=natural_key)
        }

    def read(self, address: str, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Yields the live rows of one file, which pyiceberg holds whole."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        scan = ArrowScan(
            self._table.metadata, self._table.io, self._projection.select(*columns), AlwaysTrue()
        )
        with one_line(
            lambda reason: (
                f"{address}: pyiceberg cannot read the rows ({reason}); rewrite the "
                "table's data files, or export its rows"
            )
        ):
            for batch in scan.to_record_batches([self._tasks[address]]):
                yield pa.Table.from_batches([batch]).select(columns)


def _metadata_file(path: str) -> str:
    """The newest one of the folder: that of the highest number."""
    if _SUFFIX.search(path):
        return path
    folder = f"{path.rstrip('/')}/metadata"
    found: dict[int, list[str]] = {}
    for name in names_in(path, "metadata"):
        number = re.match(r"v?(\d+)", name)
        if number is not None and _SUFFIX.search(name):
            found.setdefault(int(number[1]), []).append(name)
    if not found:
        raise Refused(f"{path}: holds no metadata file of an Iceberg table")
    latest = sorted(found[max(found)])
    if len(latest) > 1:
        raise Refused(
            f"{path}: two metadata files of the Iceberg table are equally new ({latest[0]} and "
            f"{latest[1]}), as an interrupted commit leaves them; name the one that the catalog "
            f"says: {folder}/{latest[0]}"
        )
    return f"{folder}/{latest[0]}"


def _refuse_moved(path: str, location: str) -> None:
    """Metadata names files by whole addresses: of a copy these are the ones of the original."""
    folder = path.rpartition("/metadata/")[0] if _SUFFIX.search(path) else path
    if _same_place(str(folder), location):
        return
    raise Refused(
        f"{path}: is an Iceberg table that was moved or copied: its metadata says that it lies at "
        f"{location}, and names files there; register it anew where it lies (rewrite_table_path), "
        "or export its rows"
    )


def _same_place(one: str, two: str) -> bool:
    places = [str(without_protocol(place)).rstrip("/") for place in (one, two)]
    if any(map(is_address, places)):
        names = [place.replace("s3a://", "s3://").replace("s3n://", "s3://") for place in places]
        return names[0] == names[1]
    return Path(places[0]).resolve() == Path(places[1]).resolve()


def _digest(task: Any) -> str:
    """Hashes the files that remove rows; such files never change either."""
    removed = sorted(str(one.file_path) for one in task.delete_files)
    return sha256(repr(removed).encode()).hexdigest()[:16] if removed else ""


def _bare(kind: pa.DataType) -> pa.DataType:
    """The type without the numbers that Iceberg gives to what is inside of it."""
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.large_list(_bare(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _bare(field.type)) for field in kind])
    return kind
