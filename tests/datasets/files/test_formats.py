"""Arrow IPC, folders that name columns, and addresses that fsspec resolves."""

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files.csv_files import iter_csv, read_csv
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import cut_file
from mmoe.datasets.files.ipc_files import iter_ipc
from mmoe.datasets.files.readers import column_names, iter_tables, read_table
from mmoe.datasets.files.resolve import AsRead, resolve_files
from mmoe.datasets.rows.frames import as_table
from mmoe.datasets.rows.locations import ROW_COLUMN, place, visible_columns
from mmoe.datasets.stream.source import survey
from mmoe.datasets.values import arrow

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
    (tmp_path / "user=9").mkdir()  # a column of the file comes before its folders
    pq.write_table(ROWS, tmp_path / "user=9" / "a.parquet")
    assert read_table(tmp_path / "user=9", ["user"])["user"].to_pylist() == [1, 2, 3]


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


@pytest.mark.parametrize(("address", "says"), [
    ("memory://nowhere/x.parquet", "no such file"),
    ("memory://nowhere/*.parquet", "no file matches"),
    ("nosuch://x", "check the protocol"),
])  # fmt: skip
def test_addresses_that_lead_nowhere(address, says):
    with pytest.raises(ValueError, match=rf"^{address.replace('*', '.')}: .*{says}"):
        read_table(address)


@pytest.mark.parametrize(("whole", "kind"), [
    (pa.int64(), pa.decimal128(9, 0)),
    (pa.uint64(), pa.decimal128(12, 2)),
    (pa.int8(), pa.decimal64(9, 2)),
    (pa.float64(), pa.decimal128(9, 2)),
])  # fmt: skip
def test_integers_and_floats_beside_decimals(tmp_path, whole, kind):
    """Arrow's common type of int64 and decimal(9, 0) is decimal(18, 0), to which it casts none."""
    ids = [0.35, None, 0.41] if whole == pa.float64() else [3, None, 7]
    texts = pa.array([None if one is None else str(one) for one in ids])
    for order in ((kind, whole), (whole, kind), (kind, whole, pa.decimal128(20, 5))):
        for path in tmp_path.iterdir():
            path.unlink()
        for number, one in enumerate(order):
            cells = pa.array(ids, one) if one == whole else texts.cast(one)
            pq.write_table(pa.table({"id": cells}), tmp_path / f"{number}.parquet")
        expected = ids * len(order)
        assert read_table(tmp_path)["id"].to_pylist() == expected
        source = survey(str(tmp_path), {"id": "feature 'id'"}, chunk_rows=100)
        tables = [table for piece in source.pieces for _, table in source.read(piece, ["id"])]
        assert pa.concat_tables(tables)["id"].to_pylist() == expected


@pytest.mark.parametrize(("suffix", "write", "reads"), [
    ("parquet", pq.write_table, (pq.ParquetFile, "read")),
    ("csv", pacsv.write_csv, (pacsv, "read_csv")),
    ("arrow", pa.feather.write_feather, (pa.ipc, "open_file")),
])  # fmt: skip
def test_a_file_too_large_for_the_memory_is_not_called_damaged(
    tmp_path, monkeypatch, suffix, write, reads
):
    def fails(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 99 failed")  # an ArrowException as well

    write(pa.table({"x": [1, 2]}), str(tmp_path / f"x.{suffix}"))
    monkeypatch.setattr(*reads, fails)
    with pytest.raises(MemoryError, match=rf"x\.{suffix}: malloc of size 99 failed"):
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


TABLE = pa.table(
    {
        "row": range(41),
        "word": pa.array([f"w{n % 3}" for n in range(41)]),
        "price": np.arange(41) / 8,
    }
)


def write(folder, table=TABLE, rows=10):
    pq.write_table(table, folder / "log.parquet", row_group_size=rows)
    return DataFile(str(folder / "log.parquet"))


def check_cuts(file, names, every):
    """What the spans hold, one after another, is the file; each has the rows that it says."""
    whole = pa.concat_tables(iter_tables(file, names, 7)).combine_chunks()
    rows = whole.num_rows
    spans = cut_file(file, every)
    assert spans == [range(n, min(n + every, rows)) for n in range(0, rows, every)]
    for span in spans:
        found = pa.concat_tables(iter_tables(file, names, 7, span)).combine_chunks()
        assert found.equals(whole.slice(span.start, len(span)))


def test_spans_are_the_file(tmp_path):
    file = write(tmp_path)
    for every in (1, 7, 10, 15, 41, 100):
        check_cuts(file, ["row", "word"] if every % 2 else ["price"], every)
    address = f"memory://{tmp_path.name}/log.parquet"
    fsspec.filesystem("memory").pipe(address, (tmp_path / "log.parquet").read_bytes())
    check_cuts(DataFile(address), ["row", "price"], 15)


def test_spans_are_of_requests(tmp_path):
    lists = [[{"id": 10 * n + m} for m in range(n % 4)] for n in range(20)]
    path = write(tmp_path, pa.table({"user": range(20), "items": lists}), 3)
    [file] = resolve_files(AsRead(str(path), candidates="items"))
    whole = pa.concat_tables(iter_tables(file, ["id", "user"], 5)).to_pylist()
    spans = cut_file(file, 6)
    assert spans == [range(0, 6), range(6, 12), range(12, 18), range(18, 20)]
    tables = [t for span in spans for t in iter_tables(file, ["id", "user"], 5, span)]
    assert pa.concat_tables(tables).to_pylist() == whole
    last = tables[-1]
    assert place(last, "", len(last) - 1).endswith("log.parquet: row 20, candidate 3")


def test_spans_have_numbers_and_folders_and_other_files_none(tmp_path):
    (tmp_path / "day=3").mkdir()
    file = write(tmp_path / "day=3")
    table = pa.concat_tables(iter_tables(file, ["row", "day"], 4, cut_file(file, 15)[1]))
    assert table[ROW_COLUMN].to_pylist() == [*range(15, 30)]
    assert set(table["day"].to_pylist()) == {"3"}
    assert place(table, "", 3) == f"{file}: row 19"
    (tmp_path / "log.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "log.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    for path in (write_ipc(tmp_path / "log.arrow"), tmp_path / "log.csv", tmp_path / "log.jsonl"):
        assert cut_file(*resolve_files([path]), 1) == []


DEEP = r"column 'deep' is nested more than 64 levels deep, expected numbers, text and lists"


def varint(number):
    low = bytes([number & 0x7F | (0x80 if number > 0x7F else 0)])
    return low + varint(number >> 7) if number > 0x7F else low


def element(name, children=0):
    """Of a Parquet schema, as Thrift writes it: type or repetition, name, children."""
    kind = b"\x35\x02" if children else b"\x15\x04\x25\x02"
    inside = b"\x15" + varint(2 * children) if children else b""
    return kind + b"\x18" + varint(len(name)) + name + inside + b"\0"


def deep_parquet(path, depth, columns=1):
    """A file without rows whose last column is so many groups inside one another."""
    parts = [element(b"schema", columns + 1), *(element(b"x%d" % n) for n in range(columns))]
    parts += [element(b"deep", 1), *[element(b"d", 1)] * (depth - 1), element(b"leaf")]
    header = bytes([0xFC]) + varint(len(parts))
    footer = b"\x15\x02\x19" + header + b"".join(parts) + b"\x16\0\x19\x0c\0"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def nested_type(depth, kind=None, layer=pa.list_):
    kind = pa.int64() if kind is None else kind
    for _ in range(depth):
        kind = layer(kind)
    return kind


def nested_list(depth):
    return [nested_list(depth - 1)] if depth else 1


@pytest.mark.parametrize("depth", [65, 100_000])
def test_parquet_types_are_counted_before_arrow_sees_them(tmp_path, monkeypatch, depth):
    path = deep_parquet(tmp_path / "deep.parquet", depth)
    monkeypatch.setattr(pq, "ParquetFile", None)
    for read in (column_names, lambda path: read_table(path, ["x0"])):
        with pytest.raises(ValueError, match=rf"deep\.parquet: {DEEP}"):
            read(path)


def test_parquet_types_that_are_not_too_deep_are_read(tmp_path):
    for columns in (1, 300):
        path = deep_parquet(tmp_path / "deep.parquet", 64, columns)
        assert len(column_names(path)) == columns + 1
        assert read_table(path, ["x0"]).num_rows == 0


def test_arrow_types_that_are_too_deep_are_refused(tmp_path):
    for depth, says in ((70, DEEP), (1_000, "nested more than 64 levels")):
        schema = pa.schema([("x", pa.int64()), ("deep", nested_type(depth))])
        for new in (pa.ipc.new_file, pa.ipc.new_stream):
            new(str(tmp_path / "a.arrow"), schema).close()
            with pytest.raises(ValueError, match=rf"a\.arrow.*{says}"):
                read_table(tmp_path, ["x"])


@pytest.mark.parametrize("layer", [pa.list_, pa.list_view, lambda kind: pa.struct([("d", kind)])])
def test_rows_in_memory(layer):
    deep = pa.nulls(1, nested_type(65, layer=layer))
    with pytest.raises(ValueError, match=rf"Table: {DEEP}"):
        as_table(pa.table({"deep": deep}))
    with pytest.raises(ValueError, match=rf"dict: {DEEP}"):
        as_table({"deep": [nested_list(66)]})
    held = pa.nulls(1, nested_type(64, layer=layer))
    assert as_table(pa.table({"deep": held})).num_rows == 1


@pytest.mark.parametrize(
    "kind", [nested_type(40, layer=pa.list_view), nested_type(40, pa.string_view())]
)
def test_each_layer_of_a_type_is_looked_at_once(tmp_path, monkeypatch, kind):
    calls, type_of = [], arrow.plain_type
    monkeypatch.setattr(arrow, "plain_type", lambda kind: calls.append(1) or type_of(kind))
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), pa.schema([("deep", kind)])) as writer:
        writer.write_table(pa.table({"deep": pa.nulls(2, kind)}))
    assert read_table(tmp_path)["deep"].to_pylist() == [None, None]
    assert len(calls) < 40**2 * 2
