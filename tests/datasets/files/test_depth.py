"""Types nested deeply are refused before anything goes down into them, unread columns too."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files.readers import column_names, read_table
from mmoe.datasets.rows.frames import as_table
from mmoe.datasets.values import arrow

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


@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
def test_parquet_types_are_counted_before_arrow_sees_them(tmp_path, monkeypatch, depth):
    path = deep_parquet(tmp_path / "deep.parquet", depth)
    monkeypatch.setattr(pq, "ParquetFile", None)
    for read in (column_names, lambda path: read_table(path, ["x0"])):
        with pytest.raises(ValueError, match=rf"deep\.parquet: {DEEP}"):
            read(path)


@pytest.mark.parametrize("columns", [1, 300])
def test_parquet_types_that_are_not_too_deep_are_read(tmp_path, columns):
    path = deep_parquet(tmp_path / "deep.parquet", 64, columns)
    assert len(column_names(path)) == columns + 1
    assert read_table(path, ["x0"]).num_rows == 0


def test_parquet_of_many_lists_is_no_deep_one(tmp_path):
    names = [f"c{n}" for n in range(200)]
    table = pa.table({name: [[["x"]], None] for name in names})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_table(tmp_path, names[-1:])[names[-1]].to_pylist() == [[["x"]], None]


@pytest.mark.parametrize(("depth", "says"), [(70, DEEP), (1_000, "nested more than 64 levels")])
@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_types(tmp_path, depth, says, new):
    schema = pa.schema([("x", pa.int64()), ("deep", nested_type(depth))])
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
