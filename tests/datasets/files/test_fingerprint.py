from itertools import pairwise

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files import fingerprint
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import (
    DataPrint,
    RowsPrint,
    data_changes,
    print_files,
    print_tables,
    same_rows,
)
from mmoe.datasets.rows.splits import Splits

BYTES = 40 << 20


@pytest.fixture(name="large")
def _large(tmp_path):
    """A sparse file beyond what is read in whole."""
    path = tmp_path / "log.csv"
    with path.open("wb") as file:
        file.truncate(BYTES)
    return path


def _digest(path):
    [one] = print_files({"all": str(path)}).rows
    return one.digest


def _write(path, at, content):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def test_little_is_read_of_a_large_file(large, monkeypatch):
    read, ranges = [], DataFile.ranges

    def counted(self, spans):
        read.extend(stop - start for start, stop in spans)
        return ranges(self, spans)

    monkeypatch.setattr(DataFile, "ranges", counted)
    before = _digest(large)
    assert sum(read) < 1.1 * (1 << 20)
    assert _digest(large) == before
    for at in (0, BYTES - 1):
        _write(large, at, b"x")
        assert _digest(large) != before
        _write(large, at, b"\0")
    # As where rows change places: everything between the ends is another
    _write(large, 1 << 20, b"x" * (BYTES - (2 << 20)))
    assert _digest(large) != before


def test_blocks_lie_apart_and_a_footer_is_read_in_whole(large, tmp_path, monkeypatch):
    spans = fingerprint._blocks(DataFile(str(large)), BYTES)
    assert spans[0][0] == 0 and spans[-1][1] == BYTES
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
    assert fingerprint._blocks(DataFile(str(large)), 5) == [(0, 5)]
    monkeypatch.setattr(fingerprint, "_WHOLE", 1 << 18)
    monkeypatch.setattr(fingerprint, "_BLOCK", 1 << 10)
    path = tmp_path / "log.parquet"
    table = pa.table({f"c{n}": np.arange(4000) for n in range(40)})
    pq.write_table(table, path, row_group_size=400)
    size = path.stat().st_size
    footer = size - fingerprint._blocks(DataFile(str(path)), size)[-1][0]
    assert footer == pq.ParquetFile(path).metadata.serialized_size + 8 > 1 << 13


def test_names_are_those_below_the_shared_folder(tmp_path):
    for day in (1, 2):
        folder = tmp_path / "log" / f"day={day}"
        folder.mkdir(parents=True)
        (folder / "part.csv").write_text("a\n1\n")
    both = print_files({"all": str(tmp_path / "log")})
    assert both.folder == str(tmp_path / "log")
    assert [one.name for one in both.rows] == ["day=1/part.csv", "day=2/part.csv"]
    assert both.rows[0].digest != both.rows[1].digest, "another day is other rows"
    one = print_files({"all": str(tmp_path / "log" / "day=2")})
    assert one.rows == both.rows[1:]
    (tmp_path / "log").rename(tmp_path / "moved")
    assert data_changes(both, print_files({"all": str(tmp_path / "moved")})) == []


def test_addresses(tmp_path):
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe({"/prints/a.csv": b"a\n1\n", "/prints/b.csv": b"a\n2\n"})
    before = print_files({"all": "memory://prints"})
    assert [(one.name, one.size) for one in before.rows] == [("a.csv", 4), ("b.csv", 4)]
    filesystem.pipe({"/prints/b.csv": b"a\n3\n"})
    now = print_files({"all": "memory://prints"})
    assert data_changes(before, now) == ["b.csv was changed (as many bytes, but others)"]
    (tmp_path / "a.csv").write_bytes(b"a\n1\n")
    assert print_files({"all": str(tmp_path)}).rows == before.rows[:1]
    filesystem.rm("/prints", recursive=True)


def test_checksums_of_the_store_and_files_that_cannot_be_read(tmp_path, monkeypatch):
    def fails(*_):
        raise PermissionError("no")

    monkeypatch.setattr(DataFile, "ranges", fails)
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=r"a\.csv: cannot be read \(no\); check that it is there"):
        print_files({"all": str(tmp_path)})
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe({"/sums/a.csv": b"a\n1\n"})
    info = type(filesystem).info
    monkeypatch.setattr(type(filesystem), "info", lambda *a, **k: info(*a, **k) | {"ETag": '"x"'})
    assert len(print_files({"all": "memory://sums/a.csv"}).rows) == 1, "nothing is read"
    filesystem.rm("/sums", recursive=True)


def test_tables_of_the_same_rows_are_the_same():
    table = pa.table({"a": np.arange(3000), "b": ["x", None, "zz"] * 1000})

    def digest(table):
        return print_tables(Splits(train=table, validation=table[:2], test=table[:0])).digest()

    before = digest(table)
    assert digest(pa.concat_tables([table[:1700], table[1700:]])) == before
    assert digest(pa.concat_tables([table[:7], table[:3000]])[7:]) == before
    assert digest(table.take(np.arange(3000)[::-1])) != before
    assert digest(table.rename_columns(["a", "c"])) != before
    assert digest(table.set_column(0, "a", table["a"].cast(pa.int32()))) != before
    assert digest(table[:2999]) != before


def _print(**files):
    rows = [RowsPrint(name=f"{n}.csv", size=len(d), digest=d) for n, d in files.items()]
    return DataPrint(kind="files", parts={"all": rows})


@pytest.mark.parametrize(("before", "now", "words"), [
    ({"a": "x"}, {"a": "x"}, []),
    ({"a": "x"}, {"a": "yy"}, ["a.csv was changed (1 bytes then, 2 now)"]),
    ({"a": "x"}, {"b": "x"}, ["a.csv was renamed to b.csv"]),
    ({"a": "x", "b": "y"}, {"a": "x"}, ["b.csv was removed"]),
    ({"b": "y"}, {"a": "x", "b": "y"}, ["a.csv was added"]),
    ({"a": "x", "b": "y"}, {"b": "z", "c": "x"}, ["a.csv was renamed to c.csv",
                                                  "b.csv was changed (as many bytes, but others)"]),
    ({"a": "x", "b": "y"}, {"b": "y", "a": "x"},
     ["b.csv now comes where a.csv came, so the rows come in another order"]),
    ({"a": "x", "b": "y"}, {"b": "y", "c": "x"}, ["a.csv was renamed to c.csv"]),
])  # fmt: skip
def test_words(before, now, words):
    assert data_changes(_print(**before), _print(**now)) == words
    assert same_rows(_print(**before), _print(**now)) == (
        list(before.values()) == list(now.values())
    )


def test_a_table_of_values_that_python_does_not_know():
    def print_of(kind, *numbers):
        table = pa.table({"at": pa.array(numbers, pa.int64()).view(kind), "x": [1.0, 2.0]})
        return print_tables(Splits(train=table, validation=table, test=table, origin="memory"))

    for kind in (pa.timestamp("s"), pa.date64(), pa.duration("s"), pa.timestamp("us", "Foo/Bar")):
        assert print_of(kind, 10**17, 5) == print_of(kind, 10**17, 5)
        assert print_of(kind, 10**17, 5) != print_of(kind, 10**17, 6)
