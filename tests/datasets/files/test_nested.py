"""Files whose rows are requests, read as rows of their candidates."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import candidate_counts, file_columns, iter_file
from mmoe.datasets.files.nested import nested, unnested
from mmoe.datasets.files.parquet_files import read_parquet
from mmoe.datasets.files.readers import iter_tables, read_table
from mmoe.datasets.files.resolve import AsRead
from mmoe.datasets.rows.locations import place

ROWS = [
    {"user": "a", "age": 31, "seen": [1, 2], "none": None,
     "items": [{"id": 1, "tags": ["x"]}, {"id": 2, "tags": []}]},
    {"user": "b", "age": None, "seen": [], "none": None, "items": []},
    {"user": None, "age": 7, "seen": None, "none": None, "items": None},
    {"user": "d", "age": 9, "seen": [3], "none": None, "items": [{"id": 3, "tags": ["y", "z"]}]},
]  # fmt: skip
FLAT = [
    {"user": "a", "age": 31, "seen": [1, 2], "none": None, "id": 1, "tags": ["x"]},
    {"user": "a", "age": 31, "seen": [1, 2], "none": None, "id": 2, "tags": []},
    {"user": "d", "age": 9, "seen": [3], "none": None, "id": 3, "tags": ["y", "z"]},
]


def put(file, table, **settings):
    """Writes a file of the kind that its name says."""
    kind = file.suffix[1:]
    if kind == "parquet":
        pq.write_table(table, file, **settings)
    elif kind == "arrow":
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    else:
        lines = "".join(f"{json.dumps(row)}\n" for row in table.to_pylist())
        file.write_text(lines)
    return file


def written(folder, kind):
    return put(folder / f"log.{kind}", pa.Table.from_pylist(ROWS), row_group_size=3)


def empty_lists(folder, kind, items=([], None, [])):
    """Requests without one candidate: nothing says what type their lists are of."""
    table = pa.table({"user": ["a", "b", "c"], "items": pa.array(items)})
    assert table.schema.field("items").type in (pa.null(), pa.list_(pa.null()))
    return put(folder / f"empty.{kind}", table)


def visible(table):
    return [{k: v for k, v in row.items() if not k.startswith("__")} for row in table.to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_candidates_are_rows_with_what_stands_beside_them(tmp_path, kind):
    source = AsRead(str(written(tmp_path, kind)), candidates="items")
    table = read_table(source, numbered=True)
    assert visible(table) == FLAT
    rows = [place(table, "log", n).rpartition(": ")[2] for n in range(3)]
    assert rows == ["row 1, candidate 1", "row 1, candidate 2", "row 4, candidate 1"]
    for chunk_rows in (1, 2, 100):
        chunks = list(iter_tables(source, ["id", "user", "seen"], chunk_rows))
        assert max(chunk.num_rows for chunk in chunks) <= chunk_rows
        assert [row["id"] for chunk in chunks for row in chunk.to_pylist()] == [1, 2, 3]
        assert place(chunks[-1], "log", chunks[-1].num_rows - 1).endswith("row 4, candidate 1")


def test_of_candidates_only_what_is_asked_for_is_read(tmp_path):
    path = str(written(tmp_path, "parquet"))
    source = AsRead(path, candidates="items")
    assert visible(read_table(source, ["age"])) == [{"age": 31}, {"age": 31}, {"age": 9}]
    file = DataFile(path, fields=("id",))
    read = read_parquet(file, ["user", "items"])
    assert read.schema.field("items").type.value_type.names == ["id"]
    alone = read_parquet(DataFile(str(file), fields=()), ["items"])
    assert len(alone.schema.field("items").type.value_type.names) == 1
    rows = [{"user": "a", "items": [{"item.id": 1, "item": 2}, {"item.id": 3, "item": 4}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    assert read_table(source, ["item.id"])["item.id"].to_pylist() == [1, 3]
    assert read_table(source, ["item"])["item"].to_pylist() == [2, 4]


def test_requests_and_candidates_are_counted_by_row_group(tmp_path):
    for kind, counts in (("parquet", [(3, 2), (1, 1)]), ("arrow", [(4, 3)]), ("jsonl", [(4, 3)])):
        file = DataFile(str(written(tmp_path, kind)), candidates="items")
        assert candidate_counts(file, 100) == counts
        assert file_columns(file)[-2:] == ["id", "tags"]
        tables = list(iter_file(file, ["id"], 100))
        assert sum(table.num_rows for table in tables) == 3


def test_a_flat_log_becomes_a_nested_one_and_back():
    log = pa.table({"q": [7, 8, 7], "age": [30, 40, 30], "id": [1, 2, 3]})
    rows = nested(log, "q", ["age"], "items")
    assert rows.to_pylist() == [
        {"q": 7, "age": 30, "items": [{"id": 1}, {"id": 3}]},
        {"q": 8, "age": 40, "items": [{"id": 2}]},
    ]
    back = unnested(rows, "items", ["q", "age", "id"], "log")
    assert visible(back) == log.take([0, 2, 1]).to_pylist()


@pytest.mark.parametrize(("column", "message"), [
    ("item", "no column 'item', which data.requests.candidates needs .did you mean 'items'"),
    ("seen", "'seen' .* holds list<.*int64>, expected a list of structs"),
])  # fmt: skip
def test_what_holds_no_candidates_is_refused(tmp_path, column, message):
    with pytest.raises(ValueError, match=message):
        read_table(AsRead(str(written(tmp_path, "parquet")), candidates=column), ["id"])


def test_a_field_called_as_a_column_is_refused(tmp_path):
    rows = [{"id": 1, "items": [{"id": 1}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"'id' is beside the candidates .'items'. and a field"):
        read_table(AsRead(str(tmp_path / "log.parquet"), candidates="items"), ["id"])


@pytest.mark.parametrize(("kind", "items"), [
    ("parquet", ([], None, [])),
    ("parquet", (None, None, None)),
    ("arrow", ([], None, [])),
    ("jsonl", (None, None, None)),
])  # fmt: skip
def test_empty_lists_without_a_type_are_no_candidates(tmp_path, kind, items):
    file = empty_lists(tmp_path, kind, items)
    source = AsRead(str(file), candidates="items", known=("user", "id", "tags"))
    table = read_table(source, ["id", "user"], numbered=True)
    assert table.num_rows == 0 and visible(table) == []
    (chunk,) = iter_tables(source, ["id", "user"], 10)
    assert chunk.num_rows == 0 and chunk.column_names[:2] == ["id", "user"]
    data = DataFile(str(file), candidates="items", known=("user", "id"))
    assert file_columns(data) == ["user", "id"]
    assert candidate_counts(data, 100) == [(3, 0)]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_files_beside_them_say_what_type_candidates_are_of(tmp_path, kind):
    (tmp_path / "log").mkdir()
    empty_lists(tmp_path / "log", kind)  # the first one by name
    written(tmp_path, kind).rename(tmp_path / "log" / f"log.{kind}")
    source = AsRead(str(tmp_path / "log"), candidates="items", known=("user", "id"))
    table = read_table(source, ["id", "user"], numbered=True)
    assert table["id"].to_pylist() == [1, 2, 3] and table["id"].type == pa.int64()
    assert place(table, "log", 2) == f"{tmp_path}/log/log.{kind}: row 4, candidate 1"
    assert table["__mmoe_request__"].to_pylist() == [3, 3, 6]


def test_lists_that_are_empty_in_a_files_first_block_alone_have_a_type(tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.files.json_lines._BLOCK_BYTES", 64)
    rows = [{"user": "a", "items": []}] * 20 + [{"user": "b", "items": [{"id": 7}]}]
    file = tmp_path / "log.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    table = read_table(AsRead(str(file), candidates="items"), numbered=True)
    assert visible(table) == [{"user": "b", "id": 7}]
    assert place(table, "log", 0) == f"{file}: row 21, candidate 1"


def test_empty_lists_of_which_nothing_is_known_are_refused(tmp_path):
    source = AsRead(str(empty_lists(tmp_path, "jsonl")), candidates="items")
    with pytest.raises(
        ValueError, match=r"empty.jsonl: column 'items' .* holds no candidate, so nothing says"
    ):
        read_table(source, ["id"])


@pytest.mark.parametrize(
    ("kind", "only_null"),
    [("parquet", True), ("parquet", False), ("arrow", True), ("jsonl", False)],
)
def test_a_null_candidate_is_refused_by_its_place(tmp_path, kind, only_null):
    """Also in a later chunk and row group, and where no other one gives the lists a type."""
    some = [] if only_null else [{"id": 1}]
    rows = [{"user": "a", "items": some}] * 3 + [{"user": "b", "items": [*some, None, None]}]
    file = put(tmp_path / f"log.{kind}", pa.Table.from_pylist(rows), row_group_size=2)
    source = AsRead(str(file), candidates="items", known=("user", "id"))
    said = (
        rf"log.{kind}: row 4, candidate {2 - only_null} \(in column 'items'\) is null; leave it out"
    )
    with pytest.raises(ValueError, match=said):
        read_table(source, ["id", "user"])
    with pytest.raises(ValueError, match=said):
        list(iter_tables(source, ["user"], 1))
    if kind == "parquet":
        with pytest.raises(ValueError, match=said):
            list(iter_tables(source, ["id"], 1, range(2, 4)))
