"""CSV files without a header line: told from others, and read by the names that they are given."""

import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.files.csv_header import refuse_no_header
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.readers import column_names, iter_tables, read_table
from mmoe.datasets.files.resolve import Headerless
from mmoe.datasets.rows.sources import load_splits, load_test
from mmoe.datasets.stream import open_stream
from mmoe.datasets.stream.survey import survey

NAMES = ("user", "word", "click")
TEXT = "17,a,0\n23,b,1\n42,a,1\n"


def write(path, text=TEXT):
    path.write_text(text)
    return str(path)


def test_every_row_is_read(tmp_path):
    write(tmp_path / "1.csv")
    write(tmp_path / "2.csv", "click,user,word\n1,7,c\n")  # has a header, in another order
    rows = Headerless(str(tmp_path), NAMES)
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
        (TEXT + "1,2\n", "row 4 has 2 cells, expected 3 as in the first row"),
    ],
)
def test_other_widths(tmp_path, text, says):
    rows = Headerless(write(tmp_path / "a.csv", text), NAMES)
    with pytest.raises(ValueError, match=rf"a\.csv: {says}"):
        read_table(rows)


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
