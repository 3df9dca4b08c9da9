"""CSV files: delimiter, encoding and header as told; those without a header told from others."""

import gzip

import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.files.csv_files import iter_start, refuse_no_header
from mmoe.datasets.files.data_file import CsvForm, DataFile
from mmoe.datasets.files.readers import column_names, iter_tables, read_table
from mmoe.datasets.files.resolve import AsCsv, resolve_files
from mmoe.datasets.rows.sources import load_splits, load_test
from mmoe.datasets.stream import open_stream
from mmoe.datasets.stream.source import survey

NAMES = ("user", "word", "click")
TEXT = "17,a,0\n23,b,1\n42,a,1\n"


def write(path, text=TEXT):
    path.write_text(text)
    return str(path)


def test_every_row_is_read(tmp_path):
    write(tmp_path / "1.csv")
    write(tmp_path / "2.csv", "click,user,word\n1,7,c\n")  # has a header, in another order
    rows = AsCsv(str(tmp_path), CsvForm(NAMES))
    assert column_names(rows) == list(NAMES)
    expected = {"user": [17, 23, 42, 7], "word": ["a", "b", "a", "c"], "click": [0, 1, 1, 1]}
    assert read_table(rows).to_pydict() == expected
    words = [w for chunk in iter_tables(rows, ["word"], 2) for w in chunk["word"].to_pylist()]
    assert words == expected["word"]
    source = survey(rows, {"user": "feature 'user'"}, chunk_rows=2)
    found = [t["user"].to_pylist() for p in source.pieces for _, t in source.read(p, ["user"])]
    assert [user for users in found for user in users] == expected["user"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2\n", r"the first line has 2 cells, but names were given for 3 \(user, word, click\)"),
        ("1,2\n", r"first .* in order \(a file that lacks some of them needs a header line\)$"),
        ("1::a::0\n", "first .* if '::' parts the cells, say so: --delimiter '::'"),
        (TEXT + "1,2\n", "row 4 has 2 cells, expected 3 as in the first row"),
    ],
)
def test_other_widths(tmp_path, text, says):
    rows = AsCsv(write(tmp_path / "a.csv", text), CsvForm(NAMES))
    with pytest.raises(ValueError, match=rf"a\.csv: .*{says}"):
        read_table(rows)
    with pytest.raises(ValueError, match=r"no column 'x'; .*: a::b; if '::' parts the cells, say"):
        read_table(write(tmp_path / "b.csv", "a::b\n1::2\n"), ["x"])


def told(path, raw, **form):
    path.write_bytes(raw)
    return AsCsv(str(path), CsvForm(**form))


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


@pytest.mark.parametrize(
    ("encoding", "delimiter"),
    [
        ("latin-1", "::"),
        ("utf-16", "::"),
        ("cp1252", ","),
        (None, "::"),
        (None, "¦"),
        ("latin-1", None),
        ("utf-8", "^"),
        ("utf-16", "\t"),
        (None, " "),
        ("shift_jis", ":::"),
    ],
)
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_delimiters_and_encodings(tmp_path, encoding, delimiter, block, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.files.text_files._BLOCK_BYTES", block)
    word = "ア" if encoding == "shift_jis" else "Café:"
    rows = [["user", "word", "click"], *([str(n), f"{word}{n % 7}", "1"] for n in range(300))]
    text = "".join((delimiter or ",").join(row) + "\n" for row in rows)
    raw = text.encode(encoding or "utf-8")
    file = told(tmp_path / "a.dat", raw, encoding=encoding, delimiter=delimiter)
    found = everything(file, NAMES)
    assert found == {name: [*cells] for name, *cells in zip(*rows, strict=True)}
    packed = tmp_path / "a.csv.gz"
    file = told(packed, gzip.compress(raw), encoding=encoding, delimiter=delimiter)
    assert everything(file, NAMES) == found


def test_quotes_and_a_delimiter_of_several_characters(tmp_path):
    rows = told(tmp_path / "a.dat", b'1::"Cats" (1998)::x\n2::"::y\n', delimiter="::", header=False)
    names = ["column_1", "column_2", "column_3"]
    expected = [["1", "2"], ['"Cats" (1998)', '"'], ["x", "y"]]
    assert everything(rows, names) == dict(zip(names, expected, strict=True))


@pytest.mark.parametrize(
    ("header", "names", "expected"),
    [
        (False, ("a", "b"), {"a": ["a", "1"], "b": ["b", "2"]}),
        (False, None, {"column_1": ["a", "1"], "column_2": ["b", "2"]}),
        (None, ("b", "a"), {"a": ["1"], "b": ["2"]}),
        (None, ("label", "b", "a"), {"a": ["1"], "b": ["2"]}),  # rows to be scored have no label
        (True, ("x", "y"), {"x": ["1"], "y": ["2"]}),
        (True, None, {"a": ["1"], "b": ["2"]}),
    ],
)
def test_a_header_that_is_told(tmp_path, header, names, expected):
    rows = told(tmp_path / "a.csv", b"a,b\n1,2\n", header=header, names=names)
    assert everything(rows, [*expected]) == expected


@pytest.mark.parametrize(
    ("raw", "form", "says"),
    [
        (
            "a,b\né,1\n".encode("latin-1"),
            {},
            "is not UTF-8 text.*encoding: latin-1.*--encoding latin-1",
        ),
        (
            "a::é\n".encode("latin-1"),
            {"delimiter": "::"},
            "is no UTF-8 text .*encoding: latin-1.*--encoding",
        ),
        (b"a::b\x1f\n", {"delimiter": "::"}, r"holds the character \\x1f"),
        (b"a::b\n1::2::3\n", {"delimiter": "::"}, "row 1 has 3 cells, expected 2"),
    ],
)
def test_text_that_is_not_as_told(tmp_path, raw, form, says):
    rows = told(tmp_path / "a.csv", raw, **form)
    with pytest.raises(ValueError, match=rf"a\.csv: {says}"):
        read_table(rows)
    with pytest.raises(ValueError, match=rf"a\.csv: {says}"):
        list(iter_tables(rows, None, 100))


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "a,b\na,c\n",  # a value that comes again
        "0.5\n0.7\n",
        "2024-01-31,x\n2024-02-01,y\n",
        "\n7\tNA\t1\n8\t2\t1\n",
    ],
)
def test_a_first_line_that_is_a_row(tmp_path, text):
    file = DataFile(write(tmp_path / "a.csv", text))
    with pytest.raises(
        ValueError, match=r"a\.csv: the first line looks like a row.*--columns a,b,c"
    ):
        refuse_no_header(file)


def test_lines_of_other_lengths_are_no_table(tmp_path):
    """As of PaddleRec: a cell for each id of a list."""
    path = write(tmp_path / "a.csv", "1,0,205:1,150:7\n2,1,205:3\n3,0,205:1,150:7,150:8\n")
    with pytest.raises(ValueError, match=r"a\.csv: its lines have 4, 3, 5, … cells.*one cell"):
        refuse_no_header(DataFile(path))


@pytest.mark.parametrize(
    "text",
    [
        "user,word\n1,a\n",
        "0,1,2\n5,6,7\n",  # as pandas writes an array
        "1,2\n5,6\n",
        "id,2019,2020\n1,1,2\n2,3,4\n",
        "male,age\nmale,30\n",  # a name above numbers
        "a,b\n",
        "17,a\n",  # nothing to compare with
    ],
)
def test_a_first_line_of_names(tmp_path, text):
    refuse_no_header(DataFile(write(tmp_path / "a.csv", text)))


def config(path, **data):
    return config_from_dict(
        {
            "data": {"path": path, "column_names": [*NAMES], **data},
            "features": [{"kind": "categorical", "name": "user"}],
            "tasks": [{"name": "click", "label": "click"}],
        }
    )


def test_in_memory_as_streamed(tmp_path):
    path = write(tmp_path / "a.csv", "".join(f"{n % 9},w,{n % 2}\n" for n in range(60)))
    splits = load_splits(config(path))
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 60
    streamed = open_stream(config(path, input="stream"))
    assert [len(streamed.train), len(streamed.test)] == [len(splits.train), len(splits.test)]
    assert load_test(config(path), path).table.num_rows == 60
    with_header = write(tmp_path / "b.csv", "word,click,user\nw,1,2\n")
    assert load_test(config(path), with_header).table["user"].to_pylist() == ["2"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a", "b", "a"], "column_names: .*'a' comes twice; give each column a name of its own"),
        (["a", " "], "column 2 has no name"),
        ([], "at least 1"),
    ],
)
def test_names_that_cannot_be(names, says):
    with pytest.raises(ValueError, match=says):
        config("a.csv", column_names=names)


def test_names_that_nothing_needs(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"user": 1, "click": 1}\n')
    with pytest.raises(
        ValueError, match=r"data\.column_names: is for CSV files.*a\.jsonl names its"
    ):
        load_splits(config(path))
    with pytest.raises(ValueError, match="column_names is for files, but source is hillstrom"):
        config(None, source="hillstrom")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"delimiter": '"'}, "data.delimiter: expected characters without quotes"),
        ({"encoding": "latin-99"}, "data.encoding: expected an encoding of text, .*'latin-99'"),
        ({"encoding": "zip"}, "data.encoding: expected an encoding of text"),
        ({"source": "hillstrom", "header": False}, "column_names is for files"),
    ],
)
def test_keys_that_cannot_be(data, says):
    with pytest.raises(ValueError, match=says):
        config("a.csv", **data)


def test_the_keys_of_a_config(tmp_path):
    path = tmp_path / "a.dat"
    path.write_bytes("".join(f"{n % 9}::é::{n % 2}\n" for n in range(60)).encode("latin-1"))
    as_told = config(str(path), delimiter="::", encoding="latin-1")
    assert load_test(as_told, path).table["user"].to_pylist() == [str(n % 9) for n in range(60)]
    splits = load_splits(as_told)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 60
    streamed = open_stream(config(str(path), delimiter="::", encoding="latin-1", input="stream"))
    assert [len(streamed.train), len(streamed.test)] == [len(splits.train), len(splits.test)]
