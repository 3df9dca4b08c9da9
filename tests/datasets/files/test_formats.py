"""Arrow IPC, folders that name columns, and addresses that fsspec resolves."""

import fsspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files.csv_files import iter_csv, read_csv
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.ipc_files import iter_ipc
from mmoe.datasets.files.readers import column_names, iter_tables, read_table
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.stream.source import survey

ROWS = pa.table({"user": [1, 2, 3], "word": ["a", None, "c"], "tags": [[1], [], [2, 3]]})


def write_ipc(path, stream=False):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(path), ROWS.schema) as writer:
        writer.write_table(ROWS, max_chunksize=2)
    return path


@pytest.mark.parametrize(("name", "stream"), [("a.arrow", False), ("a.arrows", True), ("a", False)])
def test_arrow_files_and_streams(tmp_path, name, stream):
    path = write_ipc(tmp_path / name, stream=stream)
    assert read_table(path).to_pydict() == ROWS.to_pydict()
    assert column_names(path) == ["user", "word", "tags"]
    chunks = list(iter_tables(path, ["word", "user"], 1))
    assert [chunk["user"].to_pylist() for chunk in chunks] == [[1], [2], [3]]


def test_feather(tmp_path):
    pyarrow.feather.write_feather(ROWS, tmp_path / "a.feather")
    assert read_table(tmp_path, ["word"])["word"].to_pylist() == ["a", None, "c"]


@pytest.mark.parametrize("cut", [0, 20, -40])
def test_damaged_arrow_files_are_named(tmp_path, cut):
    path = write_ipc(tmp_path / "a.arrow")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"a\.arrow.*(is empty|no Arrow file)"):
        read_table(path)


def test_folders_name_columns(tmp_path):
    for day, country in (("2024-01-31", "DE"), ("2024-02-01", "__HIVE_DEFAULT_PARTITION__")):
        for hour in (7, 12):
            folder = tmp_path / f"day={day}" / f"country={country}" / f"hour={hour}"
            folder.mkdir(parents=True)
            pq.write_table(ROWS, folder / "part-0.parquet")
    table = read_table(tmp_path, ["hour", "user", "day", "country"])
    assert table.column_names == ["hour", "user", "day", "country"]
    assert table["hour"].type == pa.int64()
    assert table["hour"].to_pylist() == [7] * 3 + [12] * 3 + [7] * 3 + [12] * 3
    assert table["day"].to_pylist() == ["2024-01-31"] * 6 + ["2024-02-01"] * 6
    assert table["country"].to_pylist() == ["DE"] * 6 + [None] * 6
    assert column_names(tmp_path)[-3:] == ["day", "country", "hour"]
    chunk = next(iter_tables(f"{tmp_path}/day=2024-02*", None, 2))
    assert visible_columns(chunk) == ["user", "word", "tags", "day", "country", "hour"]
    with pytest.raises(ValueError, match=r"part-0\.parquet: there is no column 'hours'"):
        read_table(tmp_path, ["hours"])


def test_a_column_of_the_file_comes_before_its_folders(tmp_path):
    (tmp_path / "user=9").mkdir()
    pq.write_table(ROWS, tmp_path / "user=9" / "a.parquet")
    assert read_table(tmp_path, ["user"])["user"].to_pylist() == [1, 2, 3]


def test_addresses(tmp_path):
    memory = fsspec.filesystem("memory")
    for number in (2, 10):
        with memory.open(f"/formats/day={number}/part.parquet", "wb") as file:
            pq.write_table(ROWS, file)
    with memory.open("/formats/_SUCCESS", "wb") as file:
        file.write(b"")
    assert read_table("memory://formats", ["day"])["day"].to_pylist() == [2] * 3 + [10] * 3
    assert read_table("memory://formats/day=1*", ["user"]).num_rows == 3
    with fsspec.open("memory://texts/a.csv.gz", "wt", compression="gzip") as file:
        file.write("x,y\n1,a\n")
    assert read_table("memory://texts/a.csv.gz").to_pydict() == {"x": [1], "y": ["a"]}
    write_ipc(tmp_path / "a.arrow")
    assert read_table(f"file://{tmp_path}/*.arrow").num_rows == 3
    assert resolve_files(f"file://{tmp_path}") == [DataFile(f"file://{tmp_path}/a.arrow")]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("memory://nowhere/x.parquet", "no such file"),
        ("memory://nowhere/*.parquet", "no file matches"),
        ("nosuch://x", "check the protocol"),
    ],
)
def test_addresses_that_lead_nowhere(address, says):
    with pytest.raises(ValueError, match=rf"^{address.replace('*', '.')}: .*{says}"):
        read_table(address)


def test_decimals_beside_floats_become_the_nearest_float(tmp_path):
    prices = pa.array(["0.35", "0.41"])
    for number, kind in enumerate((pa.float64(), pa.decimal128(9, 2))):
        pq.write_table(pa.table({"price": prices.cast(kind)}), tmp_path / f"{number}.parquet")
    assert read_table(tmp_path)["price"].to_pylist() == [0.35, 0.41, 0.35, 0.41]


@pytest.mark.parametrize("whole", [pa.int64(), pa.uint64(), pa.int8()])
@pytest.mark.parametrize("kind", [pa.decimal128(9, 0), pa.decimal128(12, 2), pa.decimal64(9, 2)])
def test_integers_beside_decimals(tmp_path, whole, kind):
    """Arrow's common type of int64 and decimal(9, 0) is decimal(18, 0), to which it casts none."""
    ids = [3, None, 7]
    for order in ((kind, whole), (whole, kind), (kind, whole, pa.decimal128(20, 5))):
        for number, one in enumerate(order):
            pq.write_table(pa.table({"id": pa.array(ids, one)}), tmp_path / f"{number}.parquet")
        expected = [3, None, 7] * len(order)
        assert read_table(tmp_path)["id"].to_pylist() == expected
        source = survey(str(tmp_path), {"id": "feature 'id'"}, chunk_rows=100)
        tables = [table for piece in source.pieces for _, table in source.read(piece, ["id"])]
        assert pa.concat_tables(tables)["id"].to_pylist() == expected
        for path in tmp_path.iterdir():
            path.unlink()


@pytest.mark.parametrize(
    ("suffix", "write", "reads"),
    [
        ("parquet", pq.write_table, (pq.ParquetFile, "read")),
        ("csv", pacsv.write_csv, (pacsv, "read_csv")),
        ("arrow", pa.feather.write_feather, (pa.ipc, "open_file")),
    ],
)
def test_a_file_too_large_for_the_memory_is_not_called_damaged(
    tmp_path, monkeypatch, suffix, write, reads
):
    def fails(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 99 failed")  # an ArrowException as well

    write(pa.table({"x": [1, 2]}), str(tmp_path / f"x.{suffix}"))
    monkeypatch.setattr(*reads, fails)
    with pytest.raises(MemoryError, match=rf"x\.{suffix}: malloc of size 99 failed"):
        read_table(tmp_path)


def test_two_units_of_time_are_refused(tmp_path):
    for number, unit in enumerate(("ms", "us")):
        table = pa.table({"at": pa.array([0], pa.timestamp(unit))})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    says = r"1\.parquet: column 'at' holds timestamp\[us\], but timestamp\[ms\] in .*0\.parquet"
    with pytest.raises(ValueError, match=says):
        read_table(tmp_path)


@pytest.mark.parametrize("text", ["a,b", '\n\n"a","b"', "\ufeffa;b"])
def test_a_header_without_an_end_of_line_has_no_rows(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text, "utf-8")
    file = DataFile(str(path))

    assert read_csv(file, None).to_pydict() == {"a": [], "b": []}
    assert read_csv(file, ["b"]).column_names == ["b"]
    assert list(iter_csv(file, None)) == []


def test_columns_that_are_too_short_are_said_with_their_file(tmp_path):
    path = tmp_path / "log.arrow"
    table = pa.table({"x": [n % 3 for n in range(4096)]})
    old = pa.ipc.MetadataVersion.V4  # which has no compressed columns
    options = pa.ipc.IpcWriteOptions(compression="lz4", metadata_version=old)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)

    with pytest.raises(ValueError, match=r"log\.arrow: is truncated or no Arrow file"):
        list(iter_ipc(DataFile(str(path)), None, 100))
