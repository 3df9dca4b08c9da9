import bz2
import gzip
import lzma
import re
import tarfile
import zipfile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.datasets.files.csv_files import iter_start, refuse_no_header
from mmoe.datasets.files.data_file import CsvForm, DataFile
from mmoe.datasets.files.readers import column_names, iter_tables, read_table
from mmoe.datasets.files.resolve import AsRead, resolve_files
from mmoe.datasets.files.sampling import sample_table
from mmoe.datasets.rows.locations import ROW_COLUMN, place
from mmoe.datasets.rows.sources import load_splits, load_test
from mmoe.datasets.stream import open_stream
from mmoe.datasets.stream.source import survey
from tests.small_configs import click_config

TEXT = "user,price,word\n1,0.5,a\n2,,b\n3,1e3,\n"
ROWS = {"user": [1, 2, 3], "price": [0.5, None, 1000.0], "word": ["a", "b", None]}


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "pack"), [("a.csv.gz", gzip.compress), ("a.csv.bz2", bz2.compress), ("a.txt", bytes)]
)
def test_csv_plain_and_compressed(tmp_path, name, pack):
    path = write(tmp_path, name, pack(TEXT.encode()))
    assert read_table(path).to_pydict() == ROWS
    assert column_names(path) == ["user", "price", "word"]
    [chunk] = iter_tables(path, ["word", "user"], 10)
    assert chunk.column_names == ["word", "user", ROW_COLUMN]
    assert chunk["user"].to_pylist() == ["1", "2", "3"]
    [none] = iter_tables(write(tmp_path, "none.csv", "x,y\n"), ["y"], 10)
    assert none.num_rows == 0 and "y" in none.column_names


def test_header_oddities(tmp_path):
    content = '\ufeffa b, né ,,"x,y"\n1, two words ,4,"5\n6"\n'
    table = read_table(write(tmp_path, "a.csv", content))
    assert table.column_names == ["a b", "né", "unnamed_2", "x,y"]
    assert table["né"].to_pylist() == ["two words"]
    assert table["x,y"].to_pylist() == ["5\n6"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "arrows"])
def test_columns_of_one_name(tmp_path, kind):
    table = pa.Table.from_arrays([pa.array([n]) for n in (1, 2, 3)], names=["x", "x", "y"])
    path = tmp_path / f"twice.{kind}"
    if kind == "csv":
        path.write_text("x,x,y\n1,2,3\n")
    elif kind == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table)
    assert column_names(path) == ["x", "x.1", "y"]
    says = rf"twice\.{kind}: 2 columns are called 'x'; rename all but one"
    for columns in (None, ["x"], ["y", "x"]):
        with pytest.raises(ValueError, match=says):
            read_table(path, columns)
        with pytest.raises(ValueError, match=says):
            list(iter_tables(path, columns, 4))
    assert read_table(path, ["y", "x.1"]).to_pydict() == {"y": [3], "x.1": [2]}
    [chunk] = iter_tables(path, ["x.1"], 4)
    assert chunk["x.1"].to_pylist() == (["2"] if kind == "csv" else [2])


def test_the_only_file_of_a_zip_archive_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.files.csv_files._BLOCK_BYTES", 1 << 14)
    text = "".join(f"{n},{n * 7919 % 1000},w\n" for n in range(20_000))
    lines = "\n".join(f'{{"user": {n}}}' for n in range(50))
    members = {"b/c.d": "user,price,word\n" + text, "b/": "", "__MACOSX/b/._c.d": "x"}
    plain = read_table(write(tmp_path, "a.csv", members["b/c.d"]))
    for name in ("a.zip", "a.csv.ZIP", "a.tsv.zip"):
        path = zipped(tmp_path / name, members)
        assert read_table(path) == plain
    chunks = list(iter_tables(path, ["price"], 1000))
    assert sum(len(chunk) for chunk in chunks) == 20_000
    sample = sample_table(path, rows=1000, most_bytes=100_000)
    assert sample.table.num_rows < 20_000 and abs(sample.rows / 20_000 - 1) < 0.5
    of_lines = zipped(tmp_path / "lines.zip", {"x": lines})
    assert read_table(of_lines).num_rows == 50
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe("/zips/a.zip", path.read_bytes())
    filesystem.pipe("/zips/lines.jsonl.zip", of_lines.read_bytes())
    assert read_table("memory://zips/a.zip") == plain
    assert read_table("memory://zips/lines.jsonl.zip")["user"].to_pylist()[-1] == 49


def zipped(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def all_chunks(path):
    return list(iter_tables(path, None, 1000))


@pytest.mark.parametrize(("name", "method"), [
    ("a.zip", zipfile.ZIP_STORED),
    ("a.csv.zip", zipfile.ZIP_DEFLATED),
    ("a.jsonl.zip", zipfile.ZIP_DEFLATED),
    ("a.csv.zip", zipfile.ZIP_LZMA),
])  # fmt: skip
def test_zip_archives_that_cannot_be_read_say_so(tmp_path, name, method):
    rows = "".join(f'{{"user": {i * 2654435761 % 2**32}}}\n' for i in range(30_000))
    text = rows if "json" in name else "user\n" + rows.replace('{"user": ', "").replace("}", "")
    whole = zipped(tmp_path / name, {"a": text}, method).read_bytes()
    begin = rf"{tmp_path}/{name}: cannot be read( as CSV)? \(.*\); .*copy (it|the file) again"
    half = len(whole) // 2
    for damaged in (whole[:-100], whole[:half], whole[:half] + bytes(500) + whole[half + 500 :]):
        path = write(tmp_path, name, damaged)
        assert re.fullmatch(begin, error(read_table, path))
        assert re.fullmatch(begin, error(all_chunks, path))
        assert re.fullmatch(begin, error(sample_table, path))
    encrypted = bytearray(whole)
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        encrypted[whole.index(mark) + flags] |= 1
    assert "is an encrypted zip archive" in error(read_table, write(tmp_path, name, encrypted))
    two = zipped(tmp_path / name, {"a.csv": TEXT, "b.csv": TEXT})
    assert "is a zip archive of 2 files, expected one" in error(read_table, two)
    assert "zip archive of 0 files" in error(read_table, zipped(tmp_path / name, {}))


def test_archives_of_other_names_and_contents(tmp_path):
    for name in ("a.xlsx", "b.csv"):
        path = zipped(tmp_path / name, {"a.csv": TEXT})
        assert f"{name}: is a zip archive (or a spreadsheet), expected" in error(read_table, path)
    (tmp_path / "big.csv").write_text(TEXT * 100)
    with tarfile.open(tmp_path / "a.csv.gz", "w:gz") as archive:
        archive.add(tmp_path / "big.csv", "a.csv")
    assert "is a tar archive, expected text; unpack it" in error(read_table, tmp_path / "a.csv.gz")
    for pack, name in ((gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")):
        path = write(tmp_path, "a.csv", pack(TEXT.encode()))
        assert f"is compressed by {name}, expected text" in error(read_table, path)
    pq.write_table(pa.table(ROWS), tmp_path / "a.parquet")
    packed = (tmp_path / "a.parquet").read_bytes()
    path = zipped(tmp_path / "p.zip", {"a": packed})
    assert error(read_table, path) == f"{path}: holds Parquet data, compressed once more; unpack it"
    path = write(tmp_path, "lines.gz", gzip.compress(b'{"user": 1}\n'))
    assert read_table(path).to_pydict() == {"user": [1]}


def test_the_delimiter_is_found(tmp_path):
    for delimiter in (",", "\t", ";", "|"):
        content = "\n".join(delimiter.join(row) for row in (["a", "b"], ["1", "x y"]))
        path = write(tmp_path, "a.csv", content)
        assert read_table(path).to_pydict() == {"a": [1], "b": ["x y"]}
    path = write(tmp_path, "a.csv", "a,b|c\n1,2|3\n")
    assert read_table(path).to_pydict() == {"a": [1], "b|c": ["2|3"]}


@pytest.mark.parametrize(
    ("end", "above"), [("\n", " \n\n"), ("\r\n", "\n\n"), ("\r", ""), ("\r", " \n\n")]
)
def test_line_ends_and_blank_lines_above_the_header(tmp_path, end, above):
    content = f"{above}a,b\n1,x\n2,y\n".replace("\n", end)
    path = write(tmp_path, "a.csv", content)
    assert column_names(path) == ["a", "b"]
    assert read_table(path).to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
    [chunk] = iter_tables(path, ["b"], 10)
    assert chunk["b"].to_pylist() == ["x", "y"]
    path = write(tmp_path, "b.csv", content + f"3{end}")
    assert f"{path}: row 3 has 1 cells, expected 2" in error_of_both(path)


def test_folder_and_glob_come_in_natural_order_without_hidden_files(tmp_path):
    for number in (10, 2, 1):
        write(tmp_path, f"part-{number}.csv", f"x\n{number}\n")
    write(tmp_path, "_SUCCESS", "")
    write(tmp_path, ".part-1.csv", "garbage")
    write(tmp_path, "README.txt", "no data")
    (tmp_path / "day=2").mkdir()
    write(tmp_path / "day=2", "part-0.csv", "x\n0\n")
    assert read_table(tmp_path)["x"].to_pylist() == [0, 1, 2, 10]
    assert read_table(f"{tmp_path}/part-*.csv")["x"].to_pylist() == [1, 2, 10]
    two = [tmp_path / "part-2.csv", str(tmp_path / "part-1.csv")]
    assert read_table(two)["x"].to_pylist() == [2, 1]
    assert [c["x"].to_pylist() for c in iter_tables(tmp_path, None, 5)] == [
        ["0"], ["1"], ["2"], ["10"]
    ]  # fmt: skip


def test_one_file_is_read_once_however_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    for number in (1, 2):
        write(tmp_path / "logs", f"p{number}.csv", f"x\n{number}\n")
    one, two = tmp_path / "logs/p1.csv", tmp_path / "logs/p2.csv"
    (tmp_path / "linked").symlink_to(tmp_path / "logs")
    monkeypatch.chdir(tmp_path)
    fsspec.filesystem("memory").pipe("/once/a.csv", b"x\n1\n")
    addresses = ["memory://once/a.csv", "memory:///once/a.csv", "memory://once"]
    assert read_table(addresses)["x"].to_pylist() == [1]
    for paths in (
        ["logs", "logs/p1.csv"],
        [one, "logs/../logs/p1.csv", two],
        ["logs/*.csv", "l*/p2.csv"],
        ["linked", "logs"],
        "l*",
        ["logs", f"file://{one}"],
        [AsRead(["logs"], CsvForm(("x",))), "logs/p2.csv"],
    ):
        assert read_table(paths)["x"].to_pylist() == [1, 2], paths
        assert len(list(iter_tables(paths, ["x"], 5))) == 2
        assert survey(paths, {"x": "a test"}, 5).num_rows == 2
        assert sample_table(paths).rows == 2
    write(tmp_path, "copy.csv", "x\n1\n")  # a file of its own, whatever it holds
    assert read_table([one, "copy.csv"])["x"].to_pylist() == [1, 1]


@pytest.mark.parametrize("link", ["hardlink_to", "symlink_to"])
def test_links_within_a_folder_are_one_file(tmp_path, link):
    path = write(tmp_path, "a.csv", "x\n1\n")
    getattr(tmp_path / "b.csv", link)(path)
    assert read_table(tmp_path)["x"].to_pylist() == [1]
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=2").mkdir()
    write(tmp_path / "day=1", "a.csv", "x\n1\n")
    getattr(tmp_path / "day=2/b.csv", link)(tmp_path / "day=1/a.csv")
    with pytest.raises(
        ValueError, match=r"b.csv: is the same file as .*day=1/a.csv, .* day=2 inst"
    ):
        read_table(f"{tmp_path}/day=*")


def test_numbered_rows_name_file_and_row(tmp_path):
    write(tmp_path, "a.csv", "x\n1\n2\n")
    write(tmp_path, "b.csv", "x\n3\n4\n")
    table = read_table(tmp_path, numbered=True).take([3, 0])
    assert place(table, "data", 0) == f"{tmp_path}/b.csv: row 2"
    assert place(table, "data", 1) == f"{tmp_path}/a.csv: row 1"
    write(tmp_path, "c.csv", "x\n" + "".join(f"{i}\n" for i in range(5)))
    chunks = list(iter_tables(tmp_path, ["x"], 2))
    assert [place(chunk, "data", 0) for chunk in chunks[1:]] == [
        f"{tmp_path}/b.csv: row 1",
        f"{tmp_path}/c.csv: row 1",
        f"{tmp_path}/c.csv: row 3",
        f"{tmp_path}/c.csv: row 5",
    ]


def test_types_of_files_are_made_one(tmp_path):
    tables = [
        pa.table({"x": pa.array([1], pa.int32()), "y": pa.array(["a"]).dictionary_encode()}),
        pa.table({"x": pa.array([None], pa.null()), "y": ["b"]}),
        pa.table({"x": [2.5], "y": ["c"], "y.z": [1], "n": [{"x": 2}]}),
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    found = read_table(tmp_path, ["y", "x"])
    assert found.to_pydict() == {"y": ["a", "b", "c"], "x": [1.0, None, 2.5]}
    (tmp_path / "2.parquet").rename(tmp_path / "part-2")
    assert read_table(tmp_path / "part-2", ["y.z"]).to_pydict() == {"y.z": [1]}


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=30,
    ),
    chunk=st.integers(1, 40),
)
def test_csv_round_trip(tmp_path_factory, rows, chunk):
    ids, reals, words = map(list, zip(*rows, strict=True))
    words = [f"w{word}" for word in words]  # never a number
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    pacsv.write_csv(pa.table({"id": ids, "real": reals, "word": words}), path)
    table = read_table(path)
    assert table["id"].to_pylist() == ids
    assert table["real"].cast(pa.float64()).to_pylist() == reals
    assert table["word"].to_pylist() == words
    chunks = list(iter_tables(path, ["word"], chunk))
    assert [w for part in chunks for w in part["word"].to_pylist()] == words


def test_line_breaks_in_cells_at_the_border_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.files.csv_files._BLOCK_BYTES", 64)
    words = ["\n".join("abcdefg"[: i % 7 + 1]) for i in range(200)]
    path = write(
        tmp_path, "a.csv", "i,word\n" + "".join(f'{i},"{w}"\n' for i, w in enumerate(words))
    )
    assert read_table(path)["word"].to_pylist() == words
    chunks = list(iter_tables(path, ["word"], 9))
    assert [word for part in chunks for word in part["word"].to_pylist()] == words


def error(function, *arguments, **keywords):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        function(*arguments, **keywords)
    return str(caught.value)


def error_of_both(path, columns=None):
    text = error(read_table, path, columns)
    assert error(lambda: list(iter_tables(path, columns, 100))) == text
    return text


def test_missing_and_empty_paths(tmp_path):
    assert "holds no data file" in error_of_both(tmp_path)
    write(tmp_path, "train.csv", TEXT)
    assert error_of_both(tmp_path / "trian.csv") == (
        f"{tmp_path}/trian.csv: no such file or folder (did you mean {tmp_path}/train.csv?)"
    )
    assert "no file matches" in error_of_both(f"{tmp_path}/*.parquet")
    for name, content in (("a.csv", b""), ("a.parquet", b""), ("a.csv.gz", gzip.compress(b""))):
        path = write(tmp_path, name, content)
        assert error_of_both(path).startswith(f"{path}: is empty")
    pq.write_table(pa.table(ROWS), tmp_path / "a.parquet")
    assert "holds CSV and Parquet files" in error_of_both(tmp_path)


def test_truncated_files(tmp_path):
    pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "whole.parquet")
    content = (tmp_path / "whole.parquet").read_bytes()
    path = write(tmp_path, "cut.parquet", content[: len(content) // 2])
    text = error_of_both(path)
    assert text.startswith(f"{path}: is truncated or no Parquet file")
    assert text.endswith("write or copy it again")
    rows = "".join(f"{i * 2654435761 % 2**32}\n" for i in range(300_000))
    packed = gzip.compress(("x\n" + rows).encode())
    path = write(tmp_path, "a.csv.gz", packed[: len(packed) * 3 // 4])
    for read in (read_table, all_chunks):
        assert error(read, path).startswith(f"{path}: cannot be read")


@pytest.mark.parametrize(("row", "cells"), [("3", 1), ("3,4,5", 3)])
def test_ragged_csv(tmp_path, row, cells):
    path = write(tmp_path, "a.csv", f'a,b\n1,"x\ny"\n{row}\n5,6\n')
    assert error_of_both(path) == (
        f"{path}: row 2 has {cells} cells, expected 2 as in the header; mend the row, or quote "
        "cells that hold the delimiter"
    )


def test_missing_column_names_file_column_and_nearest(tmp_path):
    write(tmp_path, "1.csv", TEXT)
    path = write(tmp_path, "2.csv", "user,cost,word\n1,2,3\n")
    assert error_of_both(tmp_path, ["price"]) == (
        f"{path}: there is no column 'price'; the columns are: user, cost, word"
    )
    pq.write_table(pa.table({"User_ID": [1], "b": [2]}), tmp_path / "x.parquet")
    text = error_of_both(tmp_path / "x.parquet", ["user_id"])
    assert "there is no column 'user_id' (did you mean 'User_ID'?)" in text
    path = write(tmp_path, "a.csv", "37448\t115\t0.5\n8623\t82\t0.1\n")
    assert "may lack a header line: add one" in error(read_table, path, ["click"])


def test_other_types_name_both_files(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": ["a"]}), tmp_path / "2.parquet")
    assert error(read_table, tmp_path) == (
        f"{tmp_path}/2.parquet: column 'x' holds large_string, but int64 in {tmp_path}/1.parquet; "
        "write the column with one type"
    )


def test_text_of_other_encodings(tmp_path):
    path = write(tmp_path, "a.csv", "a,b\n1,café\n".encode("latin-1"))
    assert error_of_both(path).startswith(f"{path}: is not UTF-8 text")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path = write(tmp_path, "a.csv", TEXT.encode(encoding))
        assert error_of_both(path).startswith(f"{path}: is not UTF-8 text (it looks like UTF-16)")


def test_headers_beyond_what_csv_allows(tmp_path):
    path = write(tmp_path, "a.csv", 'a,"b\n' + "1,2\n" * 50_000)
    assert error_of_both(path).startswith(f"{path}: the header line cannot be read (field larger")
    path = write(tmp_path, "endless.csv", "a," + f"{'b' * 1000}," * 9_000)
    with pytest.raises(ValueError, match=r"header line is longer than 8 MiB.*begins with 'a'"):
        read_table(path)
    path = write(tmp_path, "log.csv", "X" * 50_000)
    assert re.search(r"there is no column 'user'.*X…$", said := error(read_table, path, ["user"]))
    assert len(said) < 300
    names = [f"column {n:01000d}" for n in range(1_200)]
    path = write(tmp_path, "wide.csv", ",".join(names) + "\n" + ",".join("1" for _ in names))
    assert column_names(path) == names, "over a megabyte"
    assert read_table(path, names[::1199]).to_pylist() == [{names[0]: 1, names[-1]: 1}]


def test_a_line_above_the_header(tmp_path):
    for first, what in (("sep=,", "a note to spreadsheets"), ("# made today", "a comment")):
        path = write(tmp_path, "a.csv", f"{first}\n{TEXT}")
        assert error_of_both(path) == (
            f"{path}: the first line, {first!r}, is {what}, expected the column names; remove the "
            "line"
        )
    assert column_names(write(tmp_path, "b.csv", "#user,price\n1,2\n")) == ["#user", "price"]


def test_coded_text_in_lists_over_several_row_groups(tmp_path):
    """Which Arrow reads of one row group at a time alone."""
    values = [["x", "y"], None, [], ["z", None]] * 50
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    table = pa.table({"tags": pa.array(values, kind), "row": range(200)})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=30)
    whole = read_table(tmp_path / "log.parquet")
    assert whole["tags"].to_pylist() == values
    chunks = list(iter_tables(tmp_path / "log.parquet", ["row", "tags"], 50))
    assert max(map(len, chunks)) <= 50
    assert [tags for chunk in chunks for tags in chunk["tags"].to_pylist()] == values
    part = list(iter_tables(tmp_path / "log.parquet", ["row"], 50, range(45, 101)))
    assert [row for chunk in part for row in chunk["row"].to_pylist()] == [*range(45, 101)]


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("column", ["text", "lists"])
def test_offsets_of_an_arrow_file_are_looked_at(tmp_path, new, column):
    """Arrow itself believes them, and would read beside the column's memory."""
    starts = pa.py_buffer(np.array([0, 9, 2, 3], np.int32))
    letters = pa.array(["a", "b", "c"])
    broken = {
        "text": pa.Array.from_buffers(pa.utf8(), 3, [None, starts, pa.py_buffer(b"abc")]),
        "lists": pa.Array.from_buffers(pa.list_(pa.utf8()), 3, [None, starts], children=[letters]),
    }
    table = pa.table({column: broken[column], "x": [1, 2, 3]})
    path = tmp_path / "log.arrow"
    with new(path, table.schema) as writer:
        writer.write_table(table)
    assert read_table(path, ["x"]).num_rows == 3
    for read in (read_table, lambda *given: list(iter_tables(*given, 2))):
        with pytest.raises(
            ValueError, match=r"log\.arrow: record batch 0: is truncated or no Arrow"
        ):
            read(path, [column])


@pytest.mark.parametrize("cell", ["y" * 5_000, '"' + "y,1\n" * 1_000])
def test_a_row_that_is_too_long_is_said_to_be_one(tmp_path, monkeypatch, cell):
    from mmoe.datasets.files import csv_files

    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 1_024)
    path = tmp_path / "long.csv"
    path.write_text("a,b\n" + "x,1\n" * 10 + f"{cell},1\n")
    with pytest.raises(ValueError, match=r"long\.csv: has a row of more than 1,024 bytes.*quote"):
        read_table(path)


NAMES = ("user", "word", "click")
HEADERLESS = "17,a,0\n23,b,1\n42,a,1\n"


def write_log(path, text=HEADERLESS):
    path.write_text(text)
    return str(path)


def test_every_row_is_read(tmp_path):
    write_log(tmp_path / "1.csv")
    write_log(tmp_path / "2.csv", "click,user,word\n1,7,c\n")  # has a header, in another order
    rows = AsRead(str(tmp_path), CsvForm(NAMES))
    assert column_names(rows) == list(NAMES)
    expected = {"user": [17, 23, 42, 7], "word": ["a", "b", "a", "c"], "click": [0, 1, 1, 1]}
    assert read_table(rows).to_pydict() == expected
    words = [w for chunk in iter_tables(rows, ["word"], 2) for w in chunk["word"].to_pylist()]
    assert words == expected["word"]
    source = survey(rows, {"user": "feature 'user'"}, chunk_rows=2)
    found = [t["user"].to_pylist() for p in source.pieces for _, t in source.read(p, ["user"])]
    assert [user for users in found for user in users] == expected["user"]


@pytest.mark.parametrize(("text", "says"), [
    ("1,2\n", r"the first line has 2 cells, but names were given for 3 \(user, word, click\)"),
    ("1,2\n", r"first .* in order \(a file that lacks some of them needs a header line\)$"),
    ("1::a::0\n", "first .* if '::' parts the cells, say so: --delimiter '::'"),
    (HEADERLESS + "1,2\n", "row 4 has 2 cells, expected 3 as in the first row"),
])  # fmt: skip
def test_other_widths(tmp_path, text, says):
    rows = AsRead(write_log(tmp_path / "a.csv", text), CsvForm(NAMES))
    with pytest.raises(ValueError, match=rf"a\.csv: .*{says}"):
        read_table(rows)
    with pytest.raises(ValueError, match=r"no column 'x'; .*: a::b; if '::' parts the cells, say"):
        read_table(write_log(tmp_path / "b.csv", "a::b\n1::2\n"), ["x"])


def told(path, raw, **form):
    path.write_bytes(raw)
    return AsRead(str(path), CsvForm(**form))


def everything(rows, names):
    """Rows as all roads of reading give them, which are the same."""
    table = read_table(rows, infer_types=False)
    assert table.column_names == list(names)
    chunks = [chunk.select(list(names)) for chunk in iter_tables(rows, None, 100)]
    assert pa.concat_tables(chunks).replace_schema_metadata() == table
    [file] = resolve_files(rows)
    started = pa.concat_tables(part for part, _ in iter_start(file, [*names]))
    assert started == table
    return table.to_pydict()


@pytest.mark.parametrize(("encoding", "delimiter", "block"), [
    ("latin-1", "::", 1),
    ("utf-16", "::", 7),
    ("cp1252", ",", 7),
    (None, "::", 1),
    (None, "¦", 7),
    ("latin-1", None, 1 << 20),
    ("utf-8", "^", 1),
    ("utf-16", "\t", 7),
    (None, " ", 1 << 20),
    ("shift_jis", ":::", 1),
])  # fmt: skip
def test_delimiters_and_encodings(tmp_path, encoding, delimiter, block, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.files.text_files._BLOCK_BYTES", block)
    word = "ア" if encoding == "shift_jis" else "Café:"
    rows = [["user", "word", "click"], *([str(n), f"{word}{n % 7}", "1"] for n in range(60))]
    text = "".join((delimiter or ",").join(row) + "\n" for row in rows)
    raw = text.encode(encoding or "utf-8")
    for name, content in (("a.dat", raw), ("a.csv.gz", gzip.compress(raw))):
        file = told(tmp_path / name, content, encoding=encoding, delimiter=delimiter)
        found = everything(file, NAMES)
        assert found == {name: [*cells] for name, *cells in zip(*rows, strict=True)}


def test_quotes_and_a_delimiter_of_several_characters(tmp_path):
    rows = told(tmp_path / "a.dat", b'1::"Cats" (1998)::x\n2::"::y\n', delimiter="::", header=False)
    names = ["column_1", "column_2", "column_3"]
    expected = [["1", "2"], ['"Cats" (1998)', '"'], ["x", "y"]]
    assert everything(rows, names) == dict(zip(names, expected, strict=True))


@pytest.mark.parametrize(("header", "names", "expected"), [
    (False, ("a", "b"), {"a": ["a", "1"], "b": ["b", "2"]}),
    (False, None, {"column_1": ["a", "1"], "column_2": ["b", "2"]}),
    (None, ("b", "a"), {"a": ["1"], "b": ["2"]}),
    (None, ("label", "b", "a"), {"a": ["1"], "b": ["2"]}),  # rows to be scored have no label
    (True, ("x", "y"), {"x": ["1"], "y": ["2"]}),
    (True, None, {"a": ["1"], "b": ["2"]}),
])  # fmt: skip
def test_a_header_that_is_told(tmp_path, header, names, expected):
    rows = told(tmp_path / "a.csv", b"a,b\n1,2\n", header=header, names=names)
    assert everything(rows, [*expected]) == expected


@pytest.mark.parametrize(("raw", "form", "says"), [
    ("a,b\né,1\n".encode("latin-1"), {},
     "is not UTF-8 text.*encoding: latin-1.*--encoding latin-1"),
    ("a::é\n".encode("latin-1"), {"delimiter": "::"},
     "is no UTF-8 text .*encoding: latin-1.*--encoding"),
    (b"a::b\x1f\n", {"delimiter": "::"}, r"holds the character \\x1f"),
    (b"a::b\n1::2::3\n", {"delimiter": "::"}, "row 1 has 3 cells, expected 2"),
])  # fmt: skip
def test_text_that_is_not_as_told(tmp_path, raw, form, says):
    rows = told(tmp_path / "a.csv", raw, **form)
    with pytest.raises(ValueError, match=rf"a\.csv: {says}"):
        read_table(rows)
    with pytest.raises(ValueError, match=rf"a\.csv: {says}"):
        list(iter_tables(rows, None, 100))


def test_first_lines_that_are_rows_and_such_that_are_names(tmp_path):
    for text in (
        HEADERLESS,
        "a,b\na,c\n",  # a value that comes again
        "0.5\n0.7\n",
        "2024-01-31,x\n2024-02-01,y\n",
        "\n7\tNA\t1\n8\t2\t1\n",
    ):
        with pytest.raises(
            ValueError, match=r"a\.csv: the first line looks like a row.*--columns a"
        ):
            refuse_no_header(DataFile(write_log(tmp_path / "a.csv", text)))
    # As of PaddleRec: a cell for each id of a list
    path = write_log(tmp_path / "a.csv", "1,0,205:1,150:7\n2,1,205:3\n3,0,205:1,150:7,150:8\n")
    with pytest.raises(ValueError, match=r"a\.csv: its lines have 4, 3, 5, … cells.*one cell"):
        refuse_no_header(DataFile(path))
    for text in (
        "user,word\n1,a\n",
        "0,1,2\n5,6,7\n",  # as pandas writes an array
        "1,2\n5,6\n",
        "id,2019,2020\n1,1,2\n2,3,4\n",
        "male,age\nmale,30\n",  # a name above numbers
        "a,b\n",
        "17,a\n",  # nothing to compare with
    ):
        refuse_no_header(DataFile(write_log(tmp_path / "a.csv", text)))


def config(path, **data):
    return click_config(
        {"kind": "categorical", "name": "user"},
        data={"path": path, "column_names": [*NAMES], **data},
    )


@pytest.mark.parametrize(("data", "says"), [
    ({"column_names": ["a", "b", "a"]}, "column_names: .*'a' comes twice; give each column a"),
    ({"column_names": ["a", " "]}, "column 2 has no name"),
    ({"column_names": []}, "at least 1"),
    ({"delimiter": '"'}, "data.delimiter: expected characters without quotes"),
    ({"encoding": "latin-99"}, "data.encoding: expected an encoding of text, .*'latin-99'"),
    ({"encoding": "zip"}, "data.encoding: expected an encoding of text"),
    ({"source": "hillstrom", "header": False}, "column_names is for files"),
])  # fmt: skip
def test_keys_that_cannot_be(data, says):
    with pytest.raises(ValueError, match=says):
        config("a.csv", **data)


def test_names_that_nothing_needs(tmp_path):
    path = write_log(tmp_path / "a.jsonl", '{"user": 1, "click": 1}\n')
    with pytest.raises(
        ValueError, match=r"data\.column_names: is for CSV files.*a\.jsonl names its"
    ):
        load_splits(config(path))
    with pytest.raises(ValueError, match="column_names is for files, but source is hillstrom"):
        config(None, source="hillstrom")


def test_the_keys_of_a_config_in_memory_as_streamed(tmp_path):
    path = tmp_path / "a.dat"
    path.write_bytes("".join(f"{n % 9}::é::{n % 2}\n" for n in range(60)).encode("latin-1"))
    keys = {"delimiter": "::", "encoding": "latin-1"}
    splits = load_splits(config(str(path), **keys))
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 60
    streamed = open_stream(config(str(path), **keys, input="stream"))
    assert [len(streamed.train), len(streamed.test)] == [len(splits.train), len(splits.test)]
    users = load_test(config(str(path), **keys), path).table["user"].to_pylist()
    assert users == [str(n % 9) for n in range(60)]
    with_header = write_log(tmp_path / "b.csv", "word,click,user\nw,1,2\n")
    assert load_test(config(str(path)), with_header).table["user"].to_pylist() == ["2"]
