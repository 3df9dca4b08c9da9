"""Spans of rows that are read by themselves are what the whole file has there, in any format."""

import gzip
import json
import pickle
from contextlib import contextmanager

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmoe.datasets.files import csv_rows, ipc_messages, json_lines
from mmoe.datasets.files.csv_files import iter_csv, read_csv
from mmoe.datasets.files.data_file import CsvForm, DataFile
from mmoe.datasets.files.formats import cut_file
from mmoe.datasets.files.ipc_files import iter_ipc, read_ipc
from mmoe.datasets.files.readers import iter_tables
from mmoe.datasets.files.resolve import Nested, resolve_files
from mmoe.datasets.files.row_span import RowSpan, open_pieces
from mmoe.datasets.rows.locations import ROW_COLUMN, place
from tests.thinning import examples

MANY = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
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
        list(iter_tables(file, None, 100))
    except ValueError:
        return  # what is no CSV is refused
    check_cuts(file, None, data.draw(st.integers(1, 5)))


VALUES = st.fixed_dictionaries(
    {"a": st.one_of(st.integers(-5, 2**63), st.none(), st.floats(0, 1))},
    optional={
        "b": st.text(max_size=4),
        "late": st.lists(st.integers(0, 9), max_size=2),
        "c": st.fixed_dictionaries({"d": st.one_of(st.booleans(), st.none())}),
    },
)


@pytest.mark.parametrize("block_bytes", [5, 30, 1 << 20])
@given(
    rows=st.lists(VALUES, min_size=1, max_size=12),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n", " \n"]), min_size=12),
    head=st.sampled_from(["", "\ufeff", "\n\n", "\ufeff\n", "  "]),
    is_ended=st.booleans(),
    every=st.integers(1, 5),
)
@MANY
def test_rows_of_json_lines(tmp_path, monkeypatch, block_bytes, rows, ends, head, is_ended, every):
    """Types are those of the whole file: a part with integers alone may have to be of floats."""
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "log.jsonl"
    lines = [json.dumps(row) + end for row, end in zip(rows, ends, strict=False)]
    text = head + "".join(lines)
    path.write_bytes((text if is_ended else text.rstrip()).encode())
    json_lines._look_at.cache_clear()  # files of one example may be as old as those of another
    check_cuts(DataFile(str(path)), None, every)


def test_lines_are_counted_on_in_spans_of_json_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n \n{"a": 3}\n{"a": 4}\n')
    cut = cut_file(DataFile(str(path)), 2)
    assert [(span.line, span.bounds) for span in cut.spans] == [(1, (0, 2)), (5, (2, 4))]
    path.write_text('{"a": 1}\n\n{"a": 2}\n \n{"a": 3}\n{"a": x}\n')
    with pytest.raises(ValueError, match=r"log.jsonl: line 6 is no JSON object"):
        list(iter_tables(cut.file, ["a"], 10, cut.spans[1]))


@pytest.mark.parametrize("text", ['{"a": 1} {"a": 2}\n{"a": 3}\n', '{"a":\n1}\n{"a": 2}\n'])
def test_lines_that_are_no_rows_are_not_cut(tmp_path, text):
    (tmp_path / "log.jsonl").write_text(text)
    cut = cut_file(DataFile(str(tmp_path / "log.jsonl")), 2)
    assert cut.spans == ()
    assert cut.why_whole == "does not have one JSON object on each line"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_compressed_text_is_not_cut(tmp_path, kind):
    path = write(tmp_path, TABLE, kind)
    path = path.rename(tmp_path / f"log.{kind}.gz")
    path.write_bytes(gzip.compress(path.read_bytes()))
    cut = cut_file(DataFile(str(path)), 2)
    assert (cut.spans, cut.why_whole) == ((), "is compressed")


TABLE = pa.table(
    {
        "row": range(41),
        "word": pa.array([f"w{n % 3}" for n in range(41)]),
        "price": np.arange(41) / 8,
    }
)


@pytest.mark.parametrize("text", ["a,b", '\n\n"a","b"', "\ufeffa;b"])
def test_a_header_without_an_end_of_line_has_no_rows(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text, "utf-8")
    file = DataFile(str(path))

    assert read_csv(file, None).to_pydict() == {"a": [], "b": []}
    assert read_csv(file, ["b"]).column_names == ["b"]
    assert list(iter_csv(file, None)) == list(cut_file(file, 5).spans) == []


def write(folder, table, kind, rows=10):
    path = folder / f"log.{kind}"
    if kind == "csv":
        pacsv.write_csv(table, path)
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    elif kind == "parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        start = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(
            emit_dictionary_deltas=True, compression="zstd", unify_dictionaries=False
        )
        with start(path, table.schema, options=options) as writer:
            writer.write_table(table, rows)
    return path


@pytest.mark.parametrize("every", [1, 7, 10, 15, 41, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_spans_are_the_file(tmp_path, kind, every):
    file = DataFile(str(write(tmp_path, TABLE, kind)))
    check_cuts(file, ["row", "word"], every)
    check_cuts(file, ["price"], every)


@pytest.mark.parametrize("kind", ["arrow", "arrows"])
def test_record_batches_of_any_size(tmp_path, kind):
    """Empty ones among them, and of a stream dictionaries that grow, or are replaced."""
    words = [["a"], [], ["a", "b"], ["c", "a"], [], [], ["d"] * 5, ["b", None]]
    coded, known = [], []
    for some in words:
        known = list(dict.fromkeys([*known, *filter(None, some)]))
        if kind == "arrows" and some == ["d"] * 5:
            known = ["d"]
        codes = pa.array([known.index(w) if w else None for w in some], pa.int32())
        coded.append(pa.DictionaryArray.from_arrays(codes, pa.array(known, pa.string())))
    path = tmp_path / f"log.{kind}"
    schema = pa.schema([("w", coded[0].type), ("n", pa.int64())])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    start = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    with start(path, schema, options=options) as writer:
        for array in coded:
            numbers = pa.array(range(len(array)), pa.int64())
            writer.write_batch(pa.record_batch([array, numbers], schema=schema))
    for every in range(1, 14):
        check_cuts(DataFile(str(path)), ["n", "w"], every)


def test_a_span_of_an_arrow_file_reads_its_record_batches_alone(tmp_path, monkeypatch):
    table = pa.table({"x": np.arange(400_000), "y": np.arange(400_000)})
    for kind in ("arrow", "arrows"):
        path, read = write(tmp_path, table, kind, 4000), []
        monkeypatch.setattr(ipc_messages, "_reader", counting(ipc_messages._reader, read))
        cut = cut_file(DataFile(str(path)), 8000)
        assert len(cut.spans) == 50
        assert sum(read) < path.stat().st_size // 2
        path.write_bytes(overwritten(path.read_bytes(), 0.4, 0.5))
        for span in (cut.spans[0], cut.spans[-1]):
            assert joined(cut.file, ["x"], [span])["x"].to_pylist() == [*range(*span.bounds)]


def counting(reader, read):
    @contextmanager
    def counted(file):
        with reader(file) as fetch:
            yield lambda start, stop: read.append(stop - start) or fetch(start, stop)

    return counted


def overwritten(content, start, stop):
    start, stop = int(start * len(content)), int(stop * len(content))
    return content[:start] + b"\xff" * (stop - start) + content[stop:]


@pytest.mark.parametrize("kind", ["arrow", "arrows"])
def test_damaged_messages_are_left_to_who_reads_them(tmp_path, kind):
    path = write(tmp_path, TABLE, kind)
    content = path.read_bytes()
    for end in range(0, len(content), 31):
        path.write_bytes(content[:end])
        cut = cut_file(DataFile(str(path)), 10)
        assert cut.why_whole or kind == "arrows"
        for share in (0.1, 0.5, 0.9):
            path.write_bytes(overwritten(content, share, share + 0.05))
            cut_file(DataFile(str(path)), 10)


@pytest.mark.parametrize("kind", ["arrow", "arrows"])
def test_a_damaged_number_of_rows_makes_no_end_of_spans(tmp_path, kind):
    table = pa.table({"x": np.arange(54_321)})
    path = write(tmp_path, table, kind, len(table))
    content, rows = path.read_bytes(), len(table).to_bytes(8, "little")
    assert rows in content
    path.write_bytes(content.replace(rows, (10**7).to_bytes(8, "little")))

    assert "cannot be followed" in cut_file(DataFile(str(path)), 10).why_whole


def test_a_span_reads_no_dictionary_that_was_replaced(tmp_path):
    """Else 20,000 record batches with words of their own take 200 million pieces."""
    path = tmp_path / "log.arrows"
    schema = pa.schema([("w", pa.dictionary(pa.int8(), pa.string()))])
    with pa.ipc.new_stream(path, schema) as writer:
        for n in range(30):
            words = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), [f"w{n}", "x"])
            writer.write_batch(pa.record_batch([words], schema=schema))

    check_cuts(DataFile(str(path)), ["w"], 2)
    cut = cut_file(DataFile(str(path)), 2)
    assert max(len(span.pieces) for span in cut.spans) == 3  # schema, dictionary, record batch


def test_columns_that_are_too_short_are_said_with_their_file(tmp_path):
    path = tmp_path / "log.arrow"
    table = pa.table({"x": np.arange(4096) % 3})
    old = pa.ipc.MetadataVersion.V4  # which has no compressed columns
    options = pa.ipc.IpcWriteOptions(compression="lz4", metadata_version=old)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)

    for read in (lambda f: read_ipc(f, None), lambda f: list(iter_ipc(f, None, 100))):
        with pytest.raises(ValueError, match=r"log\.arrow: is truncated or no Arrow file"):
            read(DataFile(str(path)))


@pytest.mark.parametrize("kind", KINDS)
def test_addresses_are_cut(tmp_path, kind):
    path = write(tmp_path, TABLE, kind)
    address = f"memory://{tmp_path.name}/log.{kind}"
    fsspec.filesystem("memory").pipe(address, path.read_bytes())
    check_cuts(DataFile(address), ["row", "price"], 15)


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "arrows", "parquet"])
def test_spans_are_of_requests(tmp_path, kind):
    lists = [[{"id": 10 * n + m} for m in range(n % 4)] for n in range(20)]
    path = write(tmp_path, pa.table({"user": range(20), "items": lists}), kind, 3)
    [file] = resolve_files(Nested(str(path), "items"))
    whole = pa.concat_tables(iter_tables(file, ["id", "user"], 5)).to_pylist()
    cut = cut_file(file, 6)
    assert [span.bounds for span in cut.spans] == [(0, 6), (6, 12), (12, 18), (18, 20)]
    tables = [t for s in cut.spans for t in iter_tables(cut.file, ["id", "user"], 5, s)]
    assert pa.concat_tables(tables).to_pylist() == whole
    last = tables[-1]
    assert place(last, "", len(last) - 1).endswith(f"log.{kind}: row 20, candidate 3")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_spans_have_the_numbers_and_folders_of_the_file(tmp_path, kind):
    (tmp_path / "day=3").mkdir()
    file = DataFile(str(write(tmp_path / "day=3", TABLE, kind)))
    cut = cut_file(file, 15)
    table = pa.concat_tables(iter_tables(cut.file, ["row", "day"], 4, cut.spans[1]))
    assert table[ROW_COLUMN].to_pylist() == [*range(15, 30)]
    assert set(table["day"].to_pylist()) == {"3"}
    assert place(table, "", 3) == f"{file}: row 19"


@pytest.mark.parametrize("blank", ["", "\n", "\r\n\r\n"])
def test_a_ragged_row_is_named_by_its_number_in_the_file(tmp_path, blank):
    path = tmp_path / "log.csv"
    rows = [f'{n},"x\n"\r\n{blank}' for n in range(30)]
    path.write_text("a,b\n" + "".join(rows[:25]) + "7,8,9\n" + "".join(rows[25:]), newline="")
    file = DataFile(str(path))
    cut = cut_file(file, 10)
    assert [span.bounds for span in cut.spans] == [(0, 10), (10, 20), (20, 30), (30, 31)]
    said = []
    for span in (None, cut.spans[2]):
        with pytest.raises(ValueError, match=r"log.csv: row 26 has 3 cells, expected 2") as error:
            list(iter_tables(file, ["a"], 5, span))
        said.append(str(error.value))
    assert said[0] == said[1]
    assert len(joined(file, ["a"], [cut.spans[3]])) == 1


def test_a_row_that_begins_with_a_byte_order_mark_keeps_it(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("\ufeffa,b\n1,2\n\ufeff3,4\n", encoding="utf-8")
    check_cuts(DataFile(str(path)), ["a"], 1)


def test_the_first_line_is_a_row_where_names_are_given(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("\n" + "".join(f"{n},{n}\n" for n in range(9)))
    check_cuts(DataFile(str(path), CsvForm(("a", "b"))), ["a"], 4)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "arrow", "arrows"])
def test_other_rows_than_were_cut_are_refused(tmp_path, kind):
    file = DataFile(str(write(tmp_path, TABLE, kind)))
    cut = cut_file(file, 20)
    write(tmp_path, TABLE.slice(0, 33), kind)
    with pytest.raises(ValueError, match=r"was written to while|is truncated or no Arrow|no row"):
        list(iter_tables(cut.file, ["row"], 10, cut.spans[1]))


def test_pieces_are_one_file(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(100)))
    with open_pieces(DataFile(str(tmp_path / "x")), [(3, 5), (7, 7), (90, 100)], b"ab") as stream:
        content = stream.read()
        assert content == b"ab\3\4" + bytes(range(90, 100))
        for at in range(len(content)):
            stream.seek(at)
            assert stream.read(3) == content[at : at + 3]


def test_a_span_has_rows():
    assert (RowSpan(3, 7).rows, RowSpan(3, 7).bounds) == (4, (3, 7))
