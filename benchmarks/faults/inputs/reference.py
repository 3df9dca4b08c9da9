"""The same rows, read another way and written cleanly: what a right answer equals."""

import csv
import gzip
import io
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.faults.inputs.draft import FEATURES, LABELS, Draft, flat

_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_COLUMNS = (*FEATURES, *LABELS, "time")


def reference_tables(draft: Draft, clean: Sequence[pa.Table], which: str) -> list[pa.Table]:
    """The rows that the command should have understood.

    Raises:
        Exception: The other reader cannot read them either; of whatever type it has.
    """
    if which == "clean":
        tables = list(clean)
    elif which == "tables":
        tables = draft.tables
    else:
        wanted = [name for name in _COLUMNS if draft.reads(name)]
        tables = [_read(path, wanted) for path in draft.files]
    # What CSV cannot say (that a list is empty, what type a number has) it is not asked for
    return [_as_csv_says(table) for table in tables] if draft.is_csv else tables


def write_reference(tables: Sequence[pa.Table], path: Path) -> None:
    """One Parquet file, plain types."""
    kept = [t.select([n for n in _COLUMNS if n in t.column_names]) for t in tables]
    decoded = [_decoded(table) for table in kept]
    if len({table["user"].type for table in decoded} & {pa.int64(), pa.uint64()}) == 2:
        decoded = [_with_words(table, "user") for table in decoded]  # no type of Arrow's holds both
    try:
        whole = pa.concat_tables(decoded, promote_options="permissive")
    except pa.ArrowTypeError:  # words in one file, numbers in another
        words = [_with_words(table, "user") for table in decoded]
        whole = pa.concat_tables(words, promote_options="permissive")
    pq.write_table(whole, path)


def _with_words(table: pa.Table, name: str) -> pa.Table:
    position = table.column_names.index(name)
    return table.set_column(position, name, table[name].cast(pa.string()))


def _read(path: Path, wanted: list[str]) -> pa.Table:
    if path.suffix == ".parquet":
        with pq.ParquetFile(str(path)) as file:
            return file.read(columns=wanted)
    content = path.read_bytes()
    # A column that nobody reads may hold anything
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode(
        "utf-8-sig", errors="replace"
    )
    header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    if any(len(row) != len(header) for row in rows):
        raise ValueError("ragged")
    cells = list(zip(*rows, strict=True)) or [()] * len(header)
    first = {name: n for n, name in reversed(list(enumerate(name.strip() for name in header)))}
    return pa.table({name: pa.array(list(cells[n]), pa.string()) for name, n in first.items()})


def _as_csv_says(table: pa.Table) -> pa.Table:
    columns = {}
    for name, column in zip(table.column_names, flat(table).columns, strict=True):
        words = [None if v is None else _word(v) for v in column.to_pylist()]
        columns.setdefault(name, pa.array(words, pa.string()))
    return pa.table(columns)


def _word(value: object) -> str | None:
    text = repr(value) if isinstance(value, float) else str(value)
    return text.strip(" \t\n\r\v\f") or None


def settled(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Columns of words that are numbers in all tables become numbers."""
    out = list(tables)
    for name in {n for table in tables for n in table.column_names}:
        here = [t for t in tables if name in t.column_names]
        if not all(pa.types.is_string(t[name].type) for t in here):
            continue
        words = [w for t in here for w in t[name].to_pylist() if w is not None]
        kind = _kind(words)
        if kind is not None and name != "history":
            out = [_with(t, name, kind) if name in t.column_names else t for t in out]
    return out


def _kind(words: Sequence[str]) -> pa.DataType | None:
    if all(_WHOLE.fullmatch(w) and w != "-0" and -(2**63) <= int(w) < 2**63 for w in words):
        return pa.int64()
    if not any(_WHOLE.fullmatch(w) is None for w in words):
        return None  # whole numbers beyond 64 bits are words
    try:
        return pa.float64() if [float(w) for w in words] else None
    except ValueError:
        return None


def _with(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    to = int if pa.types.is_integer(kind) else float
    values = [None if w is None else to(w) for w in table[name].to_pylist()]
    return table.set_column(table.column_names.index(name), name, pa.array(values, kind))


def _decoded(table: pa.Table) -> pa.Table:
    for position, column in enumerate(table.columns):
        if isinstance(column.type, pa.DictionaryType):
            name = table.column_names[position]
            table = table.set_column(position, name, column.cast(column.type.value_type))
    return table
