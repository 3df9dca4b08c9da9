"""CSV and Parquet to Arrow tables: whole, or in chunks of bounded memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from mmoe.datasets.csv_files import csv_columns, iter_csv, read_csv
from mmoe.datasets.files import describe, is_parquet, resolve_files
from mmoe.datasets.parquet_files import iter_parquet, parquet_columns, read_parquet
from mmoe.datasets.rows import is_text, number_rows, plain
from mmoe.datasets.text import settle

Paths = str | Path | Iterable[str | Path]


def column_names(paths: Paths) -> list[str]:
    """The columns of the (first) file."""
    path = resolve_files(paths)[0]
    return parquet_columns(path) if is_parquet(path) else csv_columns(path)


def read_table(
    paths: Paths,
    columns: list[str] | None = None,
    *,
    infer_types: bool = True,
    numbered: bool = False,
) -> pa.Table:
    """Reads CSV (plain, .gz, .bz2, .zst) or Parquet.

    Args:
        paths: A file, folder, glob, or a list of them; rows keep the files' natural order.
        columns: Only these; None = all.
        infer_types: CSV columns become bool, int64, float64 or text by what all files together
            hold; False leaves them text, which encoders read all the same.
        numbered: Add the hidden column that lets errors name a file and row.

    Returns:
        Text as large_string; dictionary-encoded columns decoded.

    Raises:
        ValueError: A file is missing, empty, damaged, ragged, lacks a column, or has another type
            of column than the files before it; the message names the file.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    files = resolve_files(paths)
    names = column_names(files[:1]) if columns is None else list(dict.fromkeys(columns))
    tables = [_read(file, names) for file in files]
    table = _concat(files, tables)
    if infer_types and any(not is_parquet(file) for file in files):
        for position, name in enumerate(table.column_names):
            if is_text(table.schema.field(position).type):
                table = table.set_column(position, name, settle(table.column(position)))
    if numbered:
        sizes = [(str(f), part.num_rows) for f, part in zip(files, tables, strict=True)]
        table = number_rows(table, sizes)
    return table


def iter_tables(paths: Paths, columns: list[str] | None, rows_per_chunk: int) -> Iterator[pa.Table]:
    """Reads the same rows in the same order, in chunks; for scoring files larger than memory.

    CSV columns stay text: a type guessed from one chunk might not hold for the next. Each chunk
    carries the hidden row numbers. Where there is not one row, one empty table comes, which has the
    columns.

    Args:
        paths: As for `read_table`.
        columns: Only these; None = all columns of the first file.
        rows_per_chunk: Most rows of one table.

    Raises:
        ValueError: As `read_table`, when the file is reached.
    """
    files = resolve_files([paths] if isinstance(paths, str | Path) else list(paths))
    names = column_names(files[:1]) if columns is None else list(dict.fromkeys(columns))
    any_rows = False
    for file in files:
        first = 0
        for part in _iter(file, names, rows_per_chunk):
            for start in range(0, part.num_rows, rows_per_chunk):
                chunk = _plain(part.slice(start, rows_per_chunk))
                yield number_rows(chunk, [(str(file), 2**62)], first)
                first += chunk.num_rows
                any_rows = True
    if not any_rows:
        yield number_rows(_concat(files, [_read(file, names) for file in files]), [])


def read_origin(paths: Paths) -> str:
    """What to call the data in messages about all of it."""
    return describe(paths)


def _read(file: Path, names: list[str]) -> pa.Table:
    return _plain(read_parquet(file, names) if is_parquet(file) else read_csv(file, names))


def _iter(file: Path, names: list[str], rows: int) -> Iterator[pa.Table]:
    return iter_parquet(file, names, rows) if is_parquet(file) else iter_csv(file, names)


def _plain(table: pa.Table) -> pa.Table:
    columns = [plain(table.column(position)) for position in range(table.num_columns)]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _concat(files: list[Path], tables: list[pa.Table]) -> pa.Table:
    """One table; numbers widen (int64 < float64), anything else that differs is an error."""
    if len(tables) == 1:
        return tables[0]
    for position, name in enumerate(tables[0].column_names):
        kind, source = tables[0].schema.field(position).type, files[0]
        for file, table in zip(files[1:], tables[1:], strict=True):
            other = table.schema.field(position).type
            widened = widen(kind, other)
            if widened is None:
                raise ValueError(
                    f"{file}: column {name!r} holds {other}, but {kind} in {source}; write the "
                    "column with one type"
                )
            if widened != kind:
                kind, source = widened, file
        tables = [
            table.set_column(position, name, table.column(position).cast(kind, safe=False))
            for table in tables
        ]
    return pa.concat_tables(tables)


def widen(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds both, or None where there is none worth having."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    try:
        fields = [pa.schema([("x", left)]), pa.schema([("x", right)])]
        return pa.unify_schemas(fields, promote_options="permissive").field("x").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
