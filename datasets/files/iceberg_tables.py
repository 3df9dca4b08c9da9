"""Iceberg tables in a folder: `pyiceberg` reads their metadata and their rows."""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmoe.datasets.files.data_file import is_address, natural_key, without_protocol
from mmoe.datasets.files.lake import Refused, names_in, one_line

_SUFFIX = re.compile(r"(\.gz)?\.metadata\.json(\.gz)?$")


def open_table(path: str, version: int | None) -> "IcebergTable":
    """Reads the metadata of a table.

    Args:
        path: Its folder or address, or that of one of its metadata files: the state it describes.
        version: A snapshot; None: the current one.

    Raises:
        ValueError: It cannot be read, has no such snapshot, lies elsewhere than it was written to,
            or uses what pyiceberg does not read.
    """
    import pyiceberg
    from pyiceberg.table import StaticTable

    def unread(reason: str) -> str:
        what = "equality deletes" if "quality delet" in reason else "the table as it is"
        return (
            f"{path}: pyiceberg {pyiceberg.__version__} cannot read {what} of this Iceberg table "
            f"({reason}); rewrite its data files (rewrite_data_files), or export its rows"
        )

    with one_line(unread):
        return IcebergTable(path, StaticTable.from_metadata(_metadata_file(path)), version)


class IcebergTable:
    """A table at one snapshot; see `mmoe.datasets.files.lake.Table`."""

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
    """Of what removes rows of a file; such files never change either."""
    removed = sorted(str(one.file_path) for one in task.delete_files)
    return sha256(repr(removed).encode()).hexdigest()[:16] if removed else ""


def _bare(kind: pa.DataType) -> pa.DataType:
    """The type without the numbers that Iceberg gives to what is inside of it."""
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.large_list(_bare(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _bare(field.type)) for field in kind])
    return kind
