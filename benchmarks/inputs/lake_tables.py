"""Lake tables that hold fewer rows than their folders: rows read against rows that are live."""

import json
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.inputs.section import Measured

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DV_MAGIC = 1681511377


@dataclass(frozen=True)
class Made:
    """A table, how it is named, and which rows it holds; or why it has to be refused."""

    name: str
    path: str
    rows: pa.Table | None = None
    refused_for: str = ""


def measure_lake_tables(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    from mmoe.datasets import read_table

    wrong, refused = 0, 0
    details: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for made in made_tables(Path(folder)):
            try:
                found = read_table(made.path)
            except ValueError as error:
                refused += 1
                lost = 0 if made.rows is None else made.rows.num_rows
                reason = str(error).replace(folder, "")
                details[made.name] = {"wrong": lost, "refused": reason}
            else:
                lost = rows_wrong(found, made.rows)
                details[made.name] = {"wrong": lost, "rows": found.num_rows}
            wrong += lost
            say(f"  {made.name}: {details[made.name]}")
    return Measured({"lake_rows_wrong": wrong, "lake_refused": refused}, details)


def rows_wrong(found: pa.Table, expected: pa.Table | None) -> int:
    """Rows that are there and should not be, and the other way round."""
    if expected is None:
        return found.num_rows
    names = sorted(expected.column_names)
    if sorted(found.column_names) != names:
        return max(found.num_rows, expected.num_rows)
    here, there = (
        Counter(tuple(row.items()) for row in table.select(names).to_pylist())
        for table in (found, expected)
    )
    return (here - there).total() + (there - here).total()


def made_tables(folder: Path) -> Iterator[Made]:
    yield from _delta(folder / "delta")
    yield from _iceberg(folder / "iceberg")
    yield hudi_table(folder / "hudi")


def rows_of(first: int, count: int, **more: Any) -> pa.Table:
    numbers = list(range(first, first + count))
    table = pa.table({"row": numbers, "user": [f"u{n % 7}" for n in numbers]})
    for name, value in more.items():
        table = table.append_column(name, pa.array([value] * count))
    return table


def _delta(folder: Path) -> Iterator[Made]:
    from deltalake import DeltaTable, write_deltalake

    folder.mkdir()
    place = str(folder / "removed")
    write_deltalake(place, rows_of(0, 100))
    write_deltalake(place, rows_of(100, 50), mode="append")
    DeltaTable(place).delete("row < 40")
    live = rows_of(40, 110)
    yield Made("delta, rows removed", place, live)
    yield Made("delta, as of version 0", f"{place}@0", rows_of(0, 100))
    yield Made("delta, as of version 1", f"{place}@1", rows_of(0, 150))
    yield Made("delta, no such version", f"{place}@7", refused_for="at version 7")
    yield Made("delta, files by a glob", f"{place}/*.parquet", refused_for="inside the Delta table")
    yield Made("delta, folder of tables", str(folder), refused_for="lake table")

    place = str(folder / "overwritten")
    write_deltalake(place, rows_of(0, 100))
    write_deltalake(place, rows_of(500, 20), mode="overwrite")
    DeltaTable(place).create_checkpoint()
    write_deltalake(place, rows_of(520, 5), mode="append")
    yield Made("delta, overwritten, checkpoint", place, rows_of(500, 25))

    place = str(folder / "partitioned")
    days = [rows_of(n * 10, 10, day=day) for n, day in enumerate(["2024-01-31", "a b=c/d", None])]
    write_deltalake(place, pa.concat_tables(days, promote_options="default"), partition_by=["day"])
    DeltaTable(place).delete("row = 3")
    kept = pa.concat_tables(days, promote_options="default").filter(pc.field("row") != 3)
    yield Made("delta, partitions", place, kept)

    place = str(folder / "evolved")
    write_deltalake(place, rows_of(0, 10))
    later = rows_of(10, 10, price=1.5)
    write_deltalake(place, later, mode="append", schema_mode="merge")
    whole = pa.concat_tables([rows_of(0, 10), later], promote_options="default")
    yield Made("delta, a column that came later", place, whole)

    place = delta_with_vector(folder / "vector", rows_of(0, 50), [0, 7, 49])
    kept = rows_of(0, 50).filter(~pc.field("row").isin([0, 7, 49]))
    yield Made("delta, deletion vector", place, kept)
    mapped = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    for name, feature, settings in (
        ("delta, column mapping", "columnMapping", mapped),
        ("delta, type widening", "typeWidening", {}),
        ("delta, a feature of the future", "hologram", {}),
    ):
        place = delta_by_hand(folder / feature, rows_of(0, 5), [feature], settings)
        yield Made(name, place, refused_for=feature)

    place = str(folder / "clone")
    shutil.copytree(folder / "removed", place)
    for file in Path(place).glob("*.parquet"):
        file.unlink()
    _change_log(Path(place), "add", "path", lambda path: f"{folder / 'removed'}/{path}")
    yield Made("delta, shallow clone", place, refused_for="shallow clone")
    place = str(folder / "vacuumed")
    shutil.copytree(folder / "removed", place)
    for file in Path(place).glob("*.parquet"):
        file.unlink()
    yield Made("delta, a file that is gone", f"{place}@1", refused_for="gone")


def delta_by_hand(
    folder: Path, rows: pa.Table, features: Sequence[str], settings: dict[str, str] | None = None
) -> str:
    from deltalake import write_deltalake

    write_deltalake(str(folder), rows)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol |= {"readerFeatures": [*features], "writerFeatures": [*features]}
    _change_log(folder, "protocol", None, lambda _: protocol)
    if settings:
        _change_log(folder, "metaData", "configuration", lambda _: settings)
        _change_log(folder, "metaData", "schemaString", _with_physical_names)
    return str(folder)


def _with_physical_names(schema: str) -> str:
    content = json.loads(schema)
    for number, field in enumerate(content["fields"], start=1):
        key = "delta.columnMapping"
        field["metadata"] = {f"{key}.id": number, f"{key}.physicalName": field["name"]}
    return json.dumps(content)


def delta_with_vector(folder: Path, rows: pa.Table, removed: Sequence[int]) -> str:
    from pyroaring import BitMap

    place = delta_by_hand(folder, rows, ["deletionVectors"])
    bitmap = BitMap(removed).serialize()
    # An array of 64-bit bitmaps: one, of the numbers whose upper half is 0
    data = struct.pack("<IQI", _DV_MAGIC, 1, 0) + bitmap
    padded = data + bytes(-len(data) % 4)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(padded),
        "sizeInBytes": len(data),
        "cardinality": len(removed),
    }
    _change_log(folder, "add", "deletionVector", lambda _: vector)
    return place


def _z85(data: bytes) -> str:
    text = ""
    for (number,) in struct.iter_unpack(">I", data):
        text += "".join(_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


def _change_log(folder: Path, action: str, key: str | None, new: Callable[[Any], Any]) -> None:
    for file in (folder / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if action in line and key is None:
                line[action] = new(line[action])
            elif action in line:
                line[action][key] = new(line[action].get(key))
        file.write_text("\n".join(map(json.dumps, lines)) + "\n")


def _iceberg(folder: Path) -> Iterator[Made]:
    folder.mkdir()
    table = iceberg_table(folder, "removed", rows_of(0, 100))
    table.append(rows_of(100, 50))
    before = table.current_snapshot().snapshot_id
    table.delete("row < 40")
    place = str(folder / "lake/removed")
    yield Made("iceberg, rows removed", place, rows_of(40, 110))
    yield Made("iceberg, as of a snapshot", f"{place}@{before}", rows_of(0, 150))
    yield Made("iceberg, no such snapshot", f"{place}@7", refused_for="no snapshot 7")
    yield Made("iceberg, its data folder", f"{place}/data", refused_for="inside the Iceberg table")
    with table.update_schema() as update:
        update.rename_column("user", "who")
    renamed = rows_of(40, 110).rename_columns(["row", "who"])
    yield Made("iceberg, a renamed column", place, renamed)
    yield Made("iceberg, as of before that", f"{place}@{before}", rows_of(0, 150))

    table = iceberg_table(folder, "positions", rows_of(0, 50))
    remove_positions(table, [0, 7, 49])
    kept = rows_of(0, 50).filter(~pc.field("row").isin([0, 7, 49]))
    yield Made("iceberg, position deletes", str(folder / "lake/positions"), kept)
    table = iceberg_table(folder, "equality", rows_of(0, 50))
    remove_equal(table)
    place = str(folder / "lake/equality")
    yield Made("iceberg, equality deletes", place, refused_for="equality deletes")
    place = str(folder / "copied")
    shutil.copytree(folder / "lake/removed", place)
    yield Made("iceberg, copied elsewhere", place, refused_for="moved or copied")


def iceberg_table(folder: Path, name: str, rows: pa.Table) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    settings = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("benchmarks", **settings)
    catalog.create_namespace_if_not_exists("lake")
    properties = {"format-version": "2"}
    table = catalog.create_table(f"lake.{name}", schema=rows.schema, properties=properties)
    table.append(rows)
    return table


def remove_positions(table: Any, positions: Sequence[int]) -> None:
    """Adds a file of position deletes, as Spark's merge-on-read does."""
    [task] = table.scan().plan_files()
    path = task.file.file_path
    deletes = pa.table({"file_path": [path] * len(positions), "pos": list(positions)})
    _add_deletes(table, deletes, "POSITION_DELETES")


def remove_equal(table: Any) -> None:
    """Adds a file of equality deletes, as Flink's upserts do."""
    _add_deletes(table, pa.table({"row": [3, 4]}), "EQUALITY_DELETES", equality_ids=[1])


def _add_deletes(table: Any, deletes: pa.Table, content: str, **more: Any) -> None:
    """Adds a snapshot with a file of deletes to a table, as a new metadata file."""
    from pyiceberg import manifest as parts
    from pyiceberg.typedef import Record

    class Deletes(parts.ManifestWriterV2):
        def content(self) -> Any:
            return parts.ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    metadata, io = table.metadata, table.io
    home, snapshot = metadata.location, metadata.current_snapshot()
    new_id, number = snapshot.snapshot_id + 1, metadata.last_sequence_number + 1
    file = f"{home}/data/deletes.parquet"
    pq.write_table(deletes, file.removeprefix("file://"))
    data_file = parts.DataFile.from_args(
        content=parts.DataFileContent[content],
        file_path=file,
        file_format=parts.FileFormat.PARQUET,
        partition=Record(),
        record_count=deletes.num_rows,
        file_size_in_bytes=Path(file.removeprefix("file://")).stat().st_size,
        **more,
    )
    with Deletes(
        table.spec(), table.schema(), io.new_output(f"{home}/metadata/deletes.avro"), new_id, "null"
    ) as writer:
        writer.add_entry(
            parts.ManifestEntry.from_args(
                status=parts.ManifestEntryStatus.ADDED,
                snapshot_id=new_id,
                sequence_number=number,
                file_sequence_number=number,
                data_file=data_file,
            )
        )
        manifest = writer.to_manifest_file()
    listed = f"{home}/metadata/snap-{new_id}.avro"
    with parts.write_manifest_list(
        2, io.new_output(listed), new_id, snapshot.snapshot_id, number, "null"
    ) as writer:
        writer.add_manifests([*snapshot.manifests(io), manifest])
    latest = sorted(Path(home.removeprefix("file://"), "metadata").glob("*.metadata.json"))[-1]
    state = json.loads(latest.read_text())
    latest_snapshot = dict(state["snapshots"][-1])
    latest_snapshot |= {"snapshot-id": new_id, "parent-snapshot-id": snapshot.snapshot_id}
    latest_snapshot |= {"sequence-number": number, "manifest-list": listed}
    state["snapshots"].append(latest_snapshot)
    state |= {"current-snapshot-id": new_id, "last-sequence-number": number}
    state["refs"]["main"]["snapshot-id"] = new_id
    name = f"{int(latest.name[:5]) + 1:05}{latest.name[5:]}"
    latest.with_name(name).write_text(json.dumps(state))


def hudi_table(folder: Path) -> Made:
    (folder / ".hoodie").mkdir(parents=True)
    pq.write_table(rows_of(0, 5), folder / "a.parquet")
    return Made("hudi", str(folder), refused_for="Hudi")
