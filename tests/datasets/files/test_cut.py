"""Spans of rows that are read by themselves are what the whole file has there."""

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import cut_file
from mmoe.datasets.files.readers import iter_tables
from mmoe.datasets.files.resolve import Nested, resolve_files
from mmoe.datasets.rows.locations import ROW_COLUMN, place

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


@pytest.mark.parametrize("every", [1, 7, 10, 15, 41, 100])
def test_spans_are_the_file(tmp_path, every):
    file = write(tmp_path)
    check_cuts(file, ["row", "word"], every)
    check_cuts(file, ["price"], every)


def test_addresses_are_cut(tmp_path):
    address = f"memory://{tmp_path.name}/log.parquet"
    write(tmp_path)
    fsspec.filesystem("memory").pipe(address, (tmp_path / "log.parquet").read_bytes())
    check_cuts(DataFile(address), ["row", "price"], 15)


def test_spans_are_of_requests(tmp_path):
    lists = [[{"id": 10 * n + m} for m in range(n % 4)] for n in range(20)]
    path = write(tmp_path, pa.table({"user": range(20), "items": lists}), 3)
    [file] = resolve_files(Nested(str(path), "items"))
    whole = pa.concat_tables(iter_tables(file, ["id", "user"], 5)).to_pylist()
    spans = cut_file(file, 6)
    assert spans == [range(0, 6), range(6, 12), range(12, 18), range(18, 20)]
    tables = [t for span in spans for t in iter_tables(file, ["id", "user"], 5, span)]
    assert pa.concat_tables(tables).to_pylist() == whole
    last = tables[-1]
    assert place(last, "", len(last) - 1).endswith("log.parquet: row 20, candidate 3")


def test_rows_of_spans_have_the_numbers_and_folders_of_the_file(tmp_path):
    (tmp_path / "day=3").mkdir()
    file = write(tmp_path / "day=3")
    table = pa.concat_tables(iter_tables(file, ["row", "day"], 4, cut_file(file, 15)[1]))
    assert table[ROW_COLUMN].to_pylist() == [*range(15, 30)]
    assert set(table["day"].to_pylist()) == {"3"}
    assert place(table, "", 3) == f"{file}: row 19"


def test_files_without_row_groups_are_not_cut(tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "log.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    with pa.ipc.new_file(tmp_path / "log.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE, 10)
    files = resolve_files([tmp_path / f"log.{kind}" for kind in ("csv", "jsonl", "arrow")])
    assert [cut_file(file, 1) for file in files] == [[], [], []]
