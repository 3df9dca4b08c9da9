"""JSON lines: whole as in chunks, types over all lines, faults by line."""

import gzip
import itertools
import json
import re

import fsspec
import pyarrow as pa
import pytest

from mmoe.datasets.files import json_lines
from mmoe.datasets.files.readers import column_names, iter_tables, read_table
from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.stream.source import survey

ROWS = [
    {
        "user": n,
        "day": "2024-01-31",  # stays text, as in CSV
        "zip": f"0050{n}",
        "words": ["a", f"b{n}"],
        "vector": [0.5, n],
        "hash": 2**63 + n,
        "price": 1.5 if n % 2 else 2,
        "seen": n > 5,
        "about": {"n": n},
    }
    for n in range(20)
]
ROWS[15]["late"] = "x"  # after the first blocks
del ROWS[3]["words"]
ROWS[4] |= {"price": None, "words": []}


def write(path, rows=ROWS):
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    data = text.rstrip("\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 700)


@pytest.mark.parametrize("name", ["a.ndjson.gz", "a.json", "a"])
def test_whole_as_in_chunks(tmp_path, small_blocks, name):
    path = write(tmp_path / name)
    table = read_table(path)
    assert column_names(path) == [*ROWS[0], "late"]
    kinds = dict(zip(table.column_names, table.schema.types, strict=True))
    assert kinds["day"] == kinds["zip"] == kinds["late"] == pa.large_string()
    assert (kinds["user"], kinds["price"], kinds["seen"]) == (pa.int64(), pa.float64(), pa.bool_())
    assert kinds["vector"] == pa.list_(pa.float64())
    assert table.to_pylist() == [{"words": None, "late": None} | row for row in ROWS]
    chunks = list(iter_tables(path, ["hash", "late", "words"], 3))
    assert visible_columns(chunks[0]) == ["hash", "late", "words"]
    assert max(chunk.num_rows for chunk in chunks) == 3
    whole = pa.concat_tables(chunk.select(["hash", "late", "words"]) for chunk in chunks)
    assert whole.equals(table.select(["hash", "late", "words"]))


def test_streamed_from_folders_and_addresses(tmp_path, small_blocks):
    (tmp_path / "day=2024-01-31").mkdir()
    write(tmp_path / "day=2024-01-31" / "part.jsonl", [{"x": 1}, {"x": 2}])
    (tmp_path / "notes.json").write_text("{}")  # beside data files a note
    source = survey(str(tmp_path), {"x": "feature 'x'", "day": "feature 'day'"}, chunk_rows=1)
    [piece] = source.pieces
    tables = [table for _, table in source.read(piece, ["day", "x"])]
    assert [table["x"].to_pylist() for table in tables] == [[1], [2]]
    assert tables[1]["day"].to_pylist() == ["2024-01-31"]
    assert read_table(tmp_path, ["day"]).num_rows == 2
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/lines/a.jsonl.gz", gzip.compress(b'{"x": 7}\n'))
    assert read_table("memory://lines").to_pydict() == {"x": [7]}


@pytest.mark.parametrize(("text", "says"), [
    ('{"a": 1}\n{"a": \n', "line 2 is no JSON object .Expecting value at character 7 of .*mend"),
    ('{"a": 1}\n\n[1]\n', "line 3 holds a list, expected an object such as"),
    ("a,b\n1,2\n", "line 1 is no JSON object"),
    ('{"a": 1}\n{"a": "x"}\n', "line 2: column 'a' holds text, but numbers in the lines before"),
    ('{"a": [1]}\n{"a": ["x"]}\n', "line 2: column 'a' holds lists of text, but lists of num"),
    ('{"a": [1, "x"]}\n', "line 1: column 'a' holds lists of numbers and text; write all"),
    ('{"a": {"b": 1}}\n{"a": 3}\n', "line 2: column 'a' holds numbers, but objects"),
    ('{"a": 1, "a": 2}\n', "line 1 .*the key 'a' comes twice"),
    ('{"a": 1}\n' * 50 + '{"a": "x"}\n', "line 51: column 'a' holds text, but numbers"),
    ('[{"a": 1}]', r"holds one JSON array.*jq -c '\.\[\]' a\.jsonl > a-lines\.jsonl"),
    ("\n\n", "is empty; expected a JSON object on each line"),
    ('{"a": "é"}\n'.encode("latin-1"), "line 1 is not UTF-8 text"),
    ('{"a": 1}\n'.encode("utf-16"), "looks like UTF-16"),
    ('{"a": {"b": 1}}\n{"a": {"b": "x"}}\n', "from line 1 on .*changed from number to string"),
])  # fmt: skip
def test_faults_are_named_by_line(tmp_path, small_blocks, text, says):
    path = tmp_path / "a.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"^[^\n]*a\.jsonl: [^\n]*{says}[^\n]*$"):
        read_table(path)
    with pytest.raises(ValueError, match=says):
        list(iter_tables(path, None, 2))


def test_a_column_of_several_types_stands_in_no_others_way(tmp_path, small_blocks):
    mixed = [
        {"tags": ["a", 1] if n == 7 else ["b"], "about": {"n": n or "none"}, "odd": n, "x": n}
        for n in range(40)
    ]
    mixed[30]["odd"] = "text"  # after the first blocks
    mixed[31] |= {"odd": 2**63, "x": 2**63}
    path = write(tmp_path / "a.jsonl", mixed)
    assert sorted(column_names(path)) == ["about", "odd", "tags", "x"]
    assert read_table(path, ["x"])["x"].to_pylist() == [row["x"] for row in mixed]
    assert sum(table.num_rows for table in iter_tables(path, ["x"], 3)) == 40
    for column, says in (
        ("tags", "line 8: column 'tags' holds lists of text and numbers; write all items with one "
         r"type, or leave it out \(mmoe init: --drop tags\)"),
        ("odd", "line 31: column 'odd' holds text, but numbers in the lines before; write"),
        ("about", r"column 'about' holds more than one type, from line 1 on \(.*number"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            read_table(path, ["x", column])


def test_a_missing_column_and_a_file_written_anew(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"x": 1}])
    with pytest.raises(
        ValueError, match=r"a\.jsonl: there is no column 'X' \(did you mean 'x'\?\)"
    ):
        read_table(path, ["X"])
    write(path, [{"X": 1.5}])
    assert read_table(path, ["X"])["X"].to_pylist() == [1.5]


@pytest.mark.parametrize("name", ["k (x)", "k/x", "k"])
def test_objects_of_several_types_stop_nobody_whatever_their_name(tmp_path, name):
    path = tmp_path / "log.jsonl"
    rows = [{"a": n, "k": {}, name: {"u": value}} for n, value in enumerate((1, "s"))]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_table(path, ["a"])["a"].to_pylist() == [0, 1]
    with pytest.raises(ValueError, match="column " + re.escape(repr(name))):
        read_table(path, [name])


LISTS = ["[]", "null", "[null]", "[1, null]", '["a"]']
OBJECTS = ["null", "{}", '{"x": []}', '{"x": [1, null]}', '{"x": ["a"]}']


@pytest.mark.parametrize(("first", "later", "forms"), [
    ("[null, null]", LISTS, ["{}"]),
    ("[[null]]", ["[[null], []]"], ["{}"]),
    ('{"x": [null, null], "y": 1}', OBJECTS, ["{}", "[{}, null]", '{{"of": {}}}']),
])  # fmt: skip
def test_lists_of_nothing_but_nulls(tmp_path, small_blocks, first, later, forms):
    """Of which Arrow makes too few items where it is not told a type."""
    path = tmp_path / "log.jsonl"
    for cell, form in itertools.product(later, forms):
        cells = [form.format(cell if n == 40 else first) for n in range(50)]
        lines = [f'{{"row": {n}, "of": {cell}}}' for n, cell in enumerate(cells)]
        path.write_text("\n".join(lines))
        table = read_table(path)
        table.validate(full=True)
        found = table["of"].to_pylist()
        expected = [json.loads(line)["of"] for line in lines]
        shown = 50 if first.startswith("[") else 40  # objects have all keys of the column
        assert json.dumps(found[:shown]) == json.dumps(expected[:shown])


def test_ids_of_64_bits_in_objects_keep_their_digits(tmp_path, small_blocks):
    path = tmp_path / "log.jsonl"
    ids = [2**63 + n if n % 2 else n for n in range(40)]
    rows = [
        {"of": {"id": n, "x": 1e20, "more": [{"id": n, "x": n + 0.5, "none": [None]}]}} for n in ids
    ]
    path.write_text("\n".join(map(json.dumps, rows)))

    cells = read_table(path)["of"].to_pylist()

    assert [cell["id"] for cell in cells] == ids
    assert [cell["more"][0]["id"] for cell in cells] == ids
    assert {cell["x"] for cell in cells} == {1e20}
    assert cells[3]["more"][0]["none"] == [None]


@pytest.mark.parametrize("brackets", ["[]", ('{"a":', "}")])
def test_what_is_nested_deeply_is_refused_before_it_is_parsed(tmp_path, brackets):
    path = tmp_path / "deep.jsonl"
    for depth in (1_000, 100_000):
        opens, closes = brackets[0] * depth, brackets[1] * depth
        inner = "1" if brackets != "[]" else ""
        path.write_text('{"a": 1, "b": "[[[{{{\\"[["}\n' * 3 + f'{{"b": {opens}{inner}{closes}}}\n')
        with pytest.raises(ValueError, match="line 4 is nested more than 64 levels deep"):
            read_table(path, ["a"])


@pytest.mark.parametrize("form", ['{{"k{0}": {0}}}', '{{"click": 1, "of": {{"k{0}": {0}}}}}'])
def test_keys_without_end_are_counted_before_they_are_parsed(tmp_path, monkeypatch, form):
    monkeypatch.setattr(json_lines, "_arrow_table", None)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(form.format(n) + "\n" for n in range(20_000)))
    says = r"has (20,000|20,002) different keys in 20,000 lines up to line 20,000, and a line has "
    with pytest.raises(ValueError, match=says + r"[13]\.0 of them .*; write what the keys name"):
        column_names(path)


def test_keys_that_begin_to_come_without_end_are_refused_there(tmp_path, small_blocks):
    path, few = tmp_path / "log.jsonl", '{"k": "\\"x\\": 1"}\n' * 900
    path.write_text(few + "".join(f'{{"k{n}": 1}}\n' for n in range(9000)))
    says = r"has 1,0\d\d different keys in 1,\d+ lines up to line 1,9"
    with pytest.raises(ValueError, match=says):
        column_names(path)
    for keys, of_a_line in ((1_000, 1), (1_500, 30)):  # many, but columns
        starts = range(0, keys, of_a_line)
        write(path, [{f"k{(n + m) % keys}": n for m in range(of_a_line)} for n in starts])
        assert len(column_names(path)) == keys


def test_a_line_without_end_is_read_no_further(tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.files.json_lines._LINE_BYTES", 1 << 12)
    monkeypatch.setattr("mmoe.datasets.files.json_lines._BLOCK_BYTES", 1 << 10)
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n{"a": [' + "1," * 4000 + "1]}\n")
    with pytest.raises(ValueError, match="line 2 has more than 0 MiB, expected a JSON object of o"):
        read_table(path)
    path.write_text('{"a": [1]}\n{"a": [' + "1," * 1500 + "1]}\n")
    assert len(read_table(path)["a"][1]) == 1501


def test_many_columns_of_large_integers_are_parsed_at_once(tmp_path, monkeypatch):
    calls = []
    parse = json_lines._arrow_table
    monkeypatch.setattr(
        json_lines, "_arrow_table", lambda b, s: calls.append(len(b)) or parse(b, s)
    )
    row = ", ".join(f'"c{n}": {2**63 + 17 + n}' for n in range(100))
    path = tmp_path / "ids.jsonl"
    path.write_text(f"{{{row}}}\n" * 200)
    table = read_table(path)
    assert table["c99"].to_pylist()[:2] == [2**63 + 116] * 2
    assert sum(calls) < 8 * path.stat().st_size
