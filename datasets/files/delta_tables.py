"""Delta tables: `deltalake` reads the log, and which rows are deleted; the files are Parquet."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile, is_address, natural_key
from mmoe.datasets.files.lake import Refused, one_line
from mmoe.datasets.files.parquet_files import iter_parquet, parquet_columns

# Features of a table that what is below reads, or that say nothing about its rows
_READ = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


def open_table(path: str, version: int | None) -> "DeltaTable":
    """Reads the log of a table.

    Args:
        path: Its folder, or address.
        version: None: the current one.

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
            f"{path}: the Delta table cannot be read{where} by deltalake {deltalake.__version__} "
            f"({reason}); name a version that is there, or upgrade deltalake"
        )
    ):
        return DeltaTable(path, deltalake.DeltaTable(path, version=version))


class DeltaTable:
    """A table at one version; see `mmoe.datasets.files.lake.Table`."""

    def __init__(self, path: str, table: Any) -> None:
        self.path, self.version, self.id = path, int(table.version()), str(table.metadata().id)
        self._refuse_features(table)
        self.schema = pa.schema(table.schema().to_arrow())
        self._partitions: dict[str, dict[str, Any]] = {}
        self._kept = {
            _last_part(name): np.asarray(kept, bool)
            for name, kept in _rows(table.deletion_vectors())
        }
        self._read_actions(table)

    def _refuse_features(self, table: Any) -> None:
        """Refuses a table that says something about its rows that nobody would see to."""
        used = {*map(str, table.protocol().reader_features or ())} - _READ
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
            kept = self._kept.get(_last_part(inside))
            about = sha256(repr(sorted(values.items())).encode())
            about.update(b"" if kept is None else np.packbits(kept).tobytes())
            self.files[address] = about.hexdigest()[:16]

    def read(self, address: str, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Yields the live rows of one file; columns that are younger than it are null."""
        file, values = DataFile(address), self._partitions[address]
        there = [name for name in parquet_columns(file) if name not in values]
        own = [name for name in columns if name in there]
        kept_N, first = self._kept.get(_last_part(address)), 0
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
                else pa.repeat(pa.scalar(values.get(name), self._type(name)), table.num_rows)
                for name in columns
            ]
            yield pa.table(arrays, names=columns)

    def _type(self, name: str) -> pa.DataType:
        return self.schema.field(name).type


def _rows(vectors: Any) -> Iterator[tuple[str, Any]]:
    table = pa.table(vectors)
    yield from zip(
        table["filepath"].to_pylist(),
        (one.values.to_numpy(zero_copy_only=False) for one in table["selection_vector"]),
        strict=True,
    )


def _last_part(path: str) -> str:
    """A file's own name, which the log makes unique."""
    return unquote(path).rpartition("/")[2]
