"""Columns that are copied beside the scores keep their type, or one that Parquet can store."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files.readers import iter_tables, kept_types, read_table
from mmoe.datasets.stream.source import survey
from mmoe.score import file_scorer
from tests.arrow_types import ARROW_TYPES, column_of

# Of those that are not kept as they came
KEPT_AS = {
    "string_view": pa.string(),
    "dictionary_view": pa.dictionary(pa.int32(), pa.string()),
    "runs_int": pa.int64(),
    "list_of_views": pa.large_list(pa.large_string()),
    "list_view": pa.large_list(pa.int64()),
}
AS_THEY_CAME = ["binary_view", "uuid", "halffloat", "decimal32", "list_text", "struct", "map"]
REFUSED = ["interval", "sparse_union", "dense_union", "list_of_intervals"]


def _write(name, tmp_path):
    array = column_of(name, [1, 2, None, 4])
    path = tmp_path / "log.arrow"
    with pa.ipc.new_file(path, pa.schema([("odd", array.type)])) as writer:
        writer.write_table(pa.table({"odd": array}))
    return path, array


@pytest.mark.parametrize(
    ("kind", "made_up", "at"),
    [("parquet", pa.float64(), 0), ("arrow", pa.string(), 1), ("arrows", pa.list_(pa.int8()), 0),
     ("parquet", pa.null(), 1)],
)  # fmt: skip
def test_a_part_without_rows_says_nothing_of_types(tmp_path, kind, made_up, at):
    parts = [pa.table({"x": pa.array([2**62, None, 3])}), pa.table({"x": pa.array([4, 5])})]
    parts.insert(at, pa.table({"x": pa.array([], made_up)}))
    for number, part in enumerate(parts):
        path = tmp_path / f"{number}.{kind}"
        if kind == "parquet":
            pq.write_table(part, path)
            continue
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(path, part.schema) as writer:
            writer.write_table(part)
    types = kept_types(tmp_path, ["x"])
    assert types == {"x": pa.int64()}
    empty = file_scorer._result(read_table(tmp_path / f"{at}.{kind}"), types, {}, "log")
    assert empty.schema.types == [pa.int64()]
    assert read_table(tmp_path).schema.types == [pa.int64()]
    source = survey(tmp_path, {"x": "feature 'x'"}, chunk_rows=2)
    assert source.schema.types == [pa.int64()]
    read = [table for piece in source.pieces for _, table in source.read(piece, ["x"])]
    found = [value for table in read for value in table["x"].to_pylist()]
    assert found == read_table(tmp_path)["x"].to_pylist() == [2**62, None, 3, 4, 5]


@pytest.mark.parametrize("name", ARROW_TYPES)
def test_every_type_is_kept_or_refused(name, tmp_path):
    path, array = _write(name, tmp_path)
    if name in REFUSED:
        said = r"'odd', to be kept, holds .*which Parquet cannot store"
        with pytest.raises(ValueError, match=said):
            kept_types(path, ["odd"])
        return
    types = kept_types(path, ["odd"])
    result = file_scorer._result(read_table(path), types, {}, "log")
    if name not in (*KEPT_AS, *AS_THEY_CAME):
        return
    assert types == {"odd": KEPT_AS.get(name, array.type)}
    pq.write_table(result, tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "scores.parquet")["odd"].to_pylist() == array.to_pylist()


def test_a_dictionary_stays_one_with_room_for_more_values(tmp_path):
    """Codes of pandas are as short as one file's values allow."""
    for n in range(2):
        values = [None, *(f"{n}-{k}" for k in range(100))]
        kind = pa.dictionary(pa.int8(), pa.string(), ordered=True)
        coded = pa.array(values).dictionary_encode().cast(kind)
        pq.write_table(pa.table({"level": coded}), tmp_path / f"{n}.parquet")
    types = kept_types(tmp_path, ["level"])
    assert types == {"level": pa.dictionary(pa.int32(), pa.string())}
    with pq.ParquetWriter(tmp_path / "out", pa.schema(list(types.items()))) as writer:
        for n in range(2):
            rows = read_table(tmp_path / f"{n}.parquet")
            writer.write_table(file_scorer._result(rows, types, {}, "log"))
    found = pq.read_table(tmp_path / "out")["level"]
    assert pa.types.is_dictionary(found.type)
    assert found.to_pylist()[101:103] == [None, "1-0"]


def test_beside_text_a_dictionary_is_text(tmp_path):
    pq.write_table(pa.table({"level": ["a", "b"]}), tmp_path / "0.parquet")
    coded = pa.array(["b", "a"]).dictionary_encode()
    pq.write_table(pa.table({"level": coded}), tmp_path / "1.parquet")
    assert kept_types(tmp_path, ["level"]) == {"level": pa.string()}


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "", "3"], pa.int64(), [1, None, 3]),
        (["1", "NA", "0.5"], pa.float64(), [1.0, None, 0.5]),
        (["true", "", "False"], pa.bool_(), [True, None, False]),
        (["007", "1", "2"], pa.string(), ["007", "1", "2"]),
        (["", "", ""], pa.string(), None),
        (["1", "x", ""], pa.string(), None),
    ],
    ids=["int", "float", "bool", "padded", "empty", "words"],
)
def test_types_of_csv(cells, kind, values, tmp_path, monkeypatch):
    """As text, unless asked for what all of a column's cells are; chunk by chunk."""
    path = tmp_path / "log.csv"
    path.write_text("a,b\n" + "".join(f"{cell},x\n" for cell in cells))
    monkeypatch.setattr("mmoe.datasets.files.readers._ROWS", 1)
    assert kept_types(path, ["a"]) == {"a": pa.string()}
    types = kept_types(path, ["a"], read_text=True)
    assert types == {"a": kind}
    if values is not None:
        (table,) = iter_tables(path, ["a"], 10)
        assert file_scorer._result(table, types, {}, "log")["a"].to_pylist() == values


@pytest.mark.parametrize(
    ("cells", "kind"),
    [(["1", "1.5"], pa.float64()), (["1", "true"], pa.string()), (["1", "x"], pa.string())],
    ids=["numbers", "flags", "words"],
)
def test_types_over_several_csv_files(cells, kind, tmp_path):
    """Are what they would be in one."""
    for n, cell in enumerate(cells):
        (tmp_path / f"{n}.csv").write_text(f"a,b\n{cell},x\n")
    assert kept_types(tmp_path, ["a"], read_text=True) == {"a": kind}


def test_whole_numbers_that_another_file_would_round(tmp_path):
    (tmp_path / "0.csv").write_text("a,b\n9007199254740993,x\n")
    (tmp_path / "1.csv").write_text("a,b\n1.5,x\n")
    types = kept_types(tmp_path, ["a"], read_text=True)
    (rows,) = iter_tables(tmp_path / "0.csv", ["a"], 10)
    with pytest.raises(ValueError, match="'a', to be kept, has whole numbers that double, which"):
        file_scorer._result(rows, types, {}, "log")


def test_types_over_several_files(tmp_path):
    parts = [pa.nulls(2, pa.null()), pa.array([1, 2]), pa.array([0.5, 1.5])]
    for n, column in enumerate(parts):
        pq.write_table(pa.table({"a": column}), tmp_path / f"{n}.parquet")
    assert kept_types(tmp_path, ["a"]) == {"a": pa.float64()}
    pq.write_table(pa.table({"a": [True]}), tmp_path / "9.parquet")
    with pytest.raises(
        ValueError, match=r"9.parquet: column 'a' holds bool, .* or do not --keep it"
    ):
        kept_types(tmp_path, ["a"])


def test_a_column_that_one_file_lacks(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"1.parquet: there is no column 'a', which --keep needs"):
        kept_types(tmp_path, ["a"])
