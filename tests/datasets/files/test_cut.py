"""Spans of rows that are read by themselves are what the whole file has there, in any format."""

import gzip
import json
import pickle
import shutil

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmoe.datasets.files import csv_rows, json_lines
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import cut_file, iter_file
from mmoe.datasets.files.readers import iter_tables
from mmoe.datasets.files.resolve import Nested, resolve_files
from mmoe.datasets.files.row_span import RowSpan, open_pieces
from mmoe.datasets.rows.locations import ROW_COLUMN, place

MANY = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KINDS = ("csv", "jsonl", "arrow", "arrows", "parquet")


def joined(file, names, spans):
    tables = [table for span in spans for table in iter_tables(file, names, 7, span)]
    return pa.concat_tables(tables).combine_chunks()


def check_cuts(file, names, every):
    """What the spans hold, one after another, is the file; each has the rows that it says."""
    whole = pa.concat_tables(iter_tables(file, names, 7)).combine_chunks()
    cut = cut_file(file, every)
    assert not cut.why_whole
    rows = whole.num_rows
    expected = [(first, min(first + every, rows)) for first in range(0, rows, every)]
    assert [span.bounds for span in cut.spans] == expected
    if rows:
        assert joined(cut.file, names, cut.spans).equals(whole)
    for span in cut.spans:
        # As another process gets them
        here, alone = pickle.loads(pickle.dumps((cut.file, span)))
        assert joined(here, names, [alone]).equals(whole.slice(span.first, span.rows))


CELLS = st.one_of(
    st.sampled_from(
        ["", "a", " b ", '"c"', '""', '"d,e"', '"f\n"', '"g\r\nh"', '"i""j"', '"""k"', '5"', 'l"m"']
    ),
    st.text('ab" ', max_size=4).map(lambda text: '"' + text.replace('"', '""') + '"'),
    st.text('ab" ', max_size=4).filter(lambda text: not text.startswith('"')),
    st.sampled_from(['"x"y', '"x"y"z"', '"x" "', 'x""y', '"\n\n"', '"\r"']),
)
ENDS = st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r\n"])


@st.composite
def csv_texts(draw, width):
    delimiter = draw(st.sampled_from([",", "\t", ";"]))
    head = draw(st.sampled_from(["", "\ufeff"])) + draw(st.sampled_from(["", "\n", " \r\n\r"]))
    rows = draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=12))
    named = [[f"c{n}" for n in range(width - 1)] + [draw(st.sampled_from(["z", '"z\n"', "z "]))]]
    text = head + "".join(delimiter.join(row) + draw(ENDS) for row in [*named, *rows])
    return text.rstrip("\r\n") if draw(st.booleans()) else text


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
@given(data=st.data())
@MANY
def test_rows_of_csv_are_those_that_arrow_counts(tmp_path, monkeypatch, width, block_bytes, data):
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "log.csv"
    path.write_bytes(data.draw(csv_texts(width)).encode())
    file = DataFile(str(path))
    try:
        names = list(iter_file(file, [], 100)) and None
        list(iter_tables(file, names, 100))
    except ValueError:
        return  # what is no CSV is refused
    check_cuts(file, None, data.draw(st.integers(1, 5)))
