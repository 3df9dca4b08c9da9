"""Files of any format to Arrow tables: whole, or in chunks of bounded memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import numpy as np
import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import (
    file_columns,
    folder_columns,
    format_of,
    iter_file,
    read_file,
)
from mmoe.datasets.files.nested import renumbered, requests_of
from mmoe.datasets.files.parquet_files import parquet_layout
from mmoe.datasets.files.resolve import Source, resolve_files
from mmoe.datasets.rows.locations import REQUEST_COLUMN, cast_column, number_rows
from mmoe.datasets.values.arrow import is_list, is_text, pc, plain, widen
from mmoe.datasets.values.text import PLAIN_CELLS, TextCells, settle

Paths = Source | Iterable[Source]


def column_names(paths: Paths) -> list[str]:
    """Lists the columns of the (first) file, and those that the folders of all files name."""
    files = resolve_files(paths)
    shared = set.intersection(*(set(file.partitions) for file in files))
    own = set(file_columns(files[0])) - set(folder_columns(files[0]))
    return [name for name in file_columns(files[0]) if name in own or name in shared]


def read_table(
    paths: Paths,
    columns: list[str] | None = None,
    *,
    infer_types: bool = True,
    cells: TextCells = PLAIN_CELLS,
    numbered: bool = False,
) -> pa.Table:
    """Reads CSV or JSON lines (.gz, .bz2, .zst, .zip too), Parquet or Arrow, where fsspec reaches.

    Args:
        paths: A file, folder, glob, address, or a list of them; rows keep the files' natural order.
            Folders such as `day=2024-01-31` make a column `day`.
        columns: Only these; None = all.
        infer_types: CSV columns become bool, int64, float64 or text by what all files together
            hold; False leaves them text, which encoders read all the same.
        cells: CSV columns that stay text in any case, and words that mean a missing value.
        numbered: Add the hidden column that lets errors name a file and row.

    Returns:
        Text as large_string; dictionary-encoded columns decoded.

    Raises:
        ValueError: A file is missing, empty, damaged, ragged, lacks a column, or has another type
            of column than the files before it; the message names the file.
    """
    files = resolve_files(paths)
    names = column_names(files) if columns is None else list(dict.fromkeys(columns))
    tables = [plain_columns(read_file(file, names)) for file in files]
    # Rows of the files themselves: requests, where those of the tables are candidates
    requests = [requests_of(table) for table in tables]
    counts = [t.num_rows if n is None else n for t, n in zip(tables, requests, strict=True)]
    if any(file.candidates is not None for file in files):
        firsts = [0, *accumulate(counts)]
        tables = [renumbered(part, first) for part, first in zip(tables, firsts, strict=False)]
    table = join_tables(files, tables, infer_types=infer_types, cells=cells)
    if numbered:
        sizes = [(str(f), count) for f, count in zip(files, counts, strict=True)]
        table = number_rows(table, sizes)
    return table


def join_tables(
    files: list[DataFile],
    tables: list[pa.Table],
    *,
    infer_types: bool = True,
    cells: TextCells = PLAIN_CELLS,
) -> pa.Table:
    """Joins tables of one file each, plain and with the same columns, as `read_table` does.

    Raises:
        ValueError: A column has another type than in the files before it; the message names both.
    """
    table = _concat(files, tables)
    if not infer_types:
        return cells.cleaned(table)
    any_csv = any(format_of(file).is_text for file in set(files))
    folders = {name for file in files for name in file.partitions}
    settled = {
        name: settle(column, cells.known)
        if (any_csv or name in folders) and is_text(column.type) and name not in cells.as_text
        else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    table = pa.table(settled, metadata=table.schema.metadata) if settled else table
    return cells.cleaned(table)


def iter_tables(
    paths: Paths, columns: list[str] | None, rows_per_chunk: int, span: range | None = None
) -> Iterator[pa.Table]:
    """Reads the same rows in the same order, in chunks; for scoring files larger than memory.

    CSV columns stay text: a type guessed from one chunk might not hold for the next. Each chunk
    carries the hidden row numbers. Where there is not one row, one empty table comes, which has the
    columns.

    Args:
        paths: As for `read_table`.
        columns: Only these; None = all columns of the first file.
        rows_per_chunk: Most rows of one table.
        span: Only the rows of these numbers, of one Parquet file; no row group without them is
            read.

    Raises:
        ValueError: As `read_table`, when the file is reached.
    """
    files = resolve_files(paths)
    names = column_names(files) if columns is None else list(dict.fromkeys(columns))
    any_rows = False
    for file in files:
        first = 0 if span is None else span.start
        for part in _iter_rows(file, names, rows_per_chunk, span):
            for start in range(0, part.num_rows, rows_per_chunk):
                chunk = plain_columns(part.slice(start, rows_per_chunk))
                yield number_rows(chunk, [(str(file), 2**62)], first)
                first += chunk.num_rows
                any_rows = True
    if not any_rows:
        # Of a span of requests without candidates the file has rows all the same
        none = [plain_columns(read_file(file, names))[:0] for file in files]
        yield number_rows(_concat(files, none), [])


def _iter_rows(
    file: DataFile, names: list[str], rows: int, span: range | None
) -> Iterator[pa.Table]:
    if span is None:
        yield from iter_file(file, names, rows)
        return
    first, stop = span.start, span.stop
    bounds = [0, *accumulate(parquet_layout(file)[1])]
    groups = range(bisect_right(bounds, first) - 1, bisect_left(bounds, stop))
    here = bounds[groups.start]
    nested = file.candidates is not None
    for part in iter_file(file, names, rows, groups, first_request=here):
        if nested:
            begin, end = np.searchsorted(part[REQUEST_COLUMN].to_numpy(), [first, stop])
        else:
            begin, end = max(first - here, 0), min(stop - here, part.num_rows)
            here += part.num_rows
        if begin < end:
            yield part.slice(begin, end - begin)
        if not nested and here >= stop:
            return  # what follows in the row group is of others


def plain_columns(table: pa.Table) -> pa.Table:
    """Decodes dictionary-encoded columns, and casts all text to large_string.

    Rows of candidates are plain: what their request says once stays so.
    """
    if REQUEST_COLUMN in table.column_names:
        return table
    columns = [plain(table.column(position)) for position in range(table.num_columns)]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _concat(files: list[DataFile], tables: list[pa.Table]) -> pa.Table:
    """Joins tables; numbers widen (int64 < float64), anything else that differs is an error."""
    # A part without rows holds no type of anything: writers make up one
    held = [pair for pair in zip(files, tables, strict=True) if pair[1].num_rows]
    if held:
        files, tables = map(list, zip(*held, strict=True))
    if len(tables) == 1:
        return tables[0]
    largest = [partial(_largest_value, table) for table in tables]
    schema = common_schema(files, signed_where_it_fits([t.schema for t in tables], largest))
    for number, table in enumerate(tables):
        if table.schema.types != schema.types:
            pairs = zip(table.columns, schema.types, strict=True)
            columns = [cast_column(column, kind) for column, kind in pairs]
            # At once: a table that changes one column copies the list of all others
            tables[number] = pa.table(columns, names=schema.names, metadata=table.schema.metadata)
    return pa.concat_tables(tables)


def common_schema(
    files: Iterable[DataFile],
    schemas: Iterable[pa.Schema],
    in_common: Callable[[pa.DataType, pa.DataType], pa.DataType | None] | None = None,
) -> pa.Schema:
    """Finds one type for each column over all files, whose columns stand in one order.

    Args:
        files: For messages.
        schemas: Of each.
        in_common: Returns the type that holds two, or None; default: `widen`.

    Raises:
        ValueError: Two files' types have none in common; names both.
    """
    kinds: dict[str, pa.DataType] = {}
    sources: dict[str, DataFile] = {}
    for file, schema in zip(files, schemas, strict=True):
        for field in schema:
            kind = kinds.setdefault(field.name, field.type)
            widened = (in_common or widen)(kind, field.type)
            if widened is None:
                raise ValueError(
                    f"{file}: column {field.name!r} holds {field.type}, but {kind} in "
                    f"{sources[field.name]}; write the column with one type"
                )
            # The file that made the type as wide as it is, for the refusal
            if widened != kind or field.name not in sources:
                kinds[field.name], sources[field.name] = widened, file
    return pa.schema(list(kinds.items()))


def signed_where_it_fits(
    schemas: Sequence[pa.Schema], largest: Sequence[Callable[[str], int]]
) -> list[pa.Schema]:
    """Casts unsigned 64-bit columns to signed where values allow it and others need it.

    Args:
        schemas: Of each file.
        largest: Of each file, the largest value of a column; asked for where it matters alone.
    """
    kinds = [dict(zip(schema.names, schema.types, strict=True)) for schema in schemas]
    signed = {
        name
        for of_file in kinds
        for name, kind in of_file.items()
        if pa.types.is_signed_integer(_leaf(kind))
    }
    for of_file, largest_of in zip(kinds, largest, strict=True):
        for name in signed & of_file.keys():
            if _leaf(of_file[name]) == pa.uint64() and largest_of(name) < 2**63:
                of_file[name] = _with_leaf(of_file[name], pa.int64())
    return [pa.schema(list(of_file.items())) for of_file in kinds]


def largest_in_file(file: DataFile, name: str, rows_per_chunk: int) -> int:
    """Returns the largest value of a column of integers, or of lists of them, or 0."""
    tables = iter_file(file, [name], rows_per_chunk)
    return max((_largest_value(plain_columns(table), name) for table in tables), default=0)


def _largest_value(table: pa.Table, name: str) -> int:
    column = table[name]
    while is_list(column.type):
        column = pc.list_flatten(column)
    return pc.max(column).as_py() or 0


def _leaf(kind: pa.DataType) -> pa.DataType:
    """Returns the type that lists hold; the type itself where it is none of lists."""
    return _leaf(kind.value_type) if is_list(kind) else kind


def _with_leaf(kind: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    return pa.large_list(_with_leaf(kind.value_type, leaf)) if is_list(kind) else leaf
