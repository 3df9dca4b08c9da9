"""Files of any format to Arrow tables: whole, or in chunks; and types that files have in common."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, compress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import (
    file_columns,
    file_types,
    folder_columns,
    format_of,
    has_rows,
    iter_file,
    read_file,
)
from mmoe.datasets.files.nested import renumbered, requests_of
from mmoe.datasets.files.parquet_files import parquet_layout
from mmoe.datasets.files.resolve import Source, resolve_files
from mmoe.datasets.rows.locations import REQUEST_COLUMN, cast_column, check_columns, number_rows
from mmoe.datasets.values.arrow import is_list, is_text, pc, plain, plain_type, widen
from mmoe.datasets.values.text import (
    PLAIN_CELLS,
    TextCells,
    blank_to_null,
    loses_digits,
    settle,
    to_booleans,
)

Paths = Source | Iterable[Source]
# Rows held at a time where a column has to be looked through
_ROWS = 65_536


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


def kept_types(
    source: Paths, keep: Sequence[str], *, read_text: bool = False
) -> dict[str, pa.DataType]:
    """Finds one type for each kept column over all files, before anything is written.

    CSV cells are kept as text: what they look like may change from file to file.

    Args:
        source: All files.
        keep: Names of columns.
        read_text: Give CSV columns the type that all of their cells have; they are read twice then.

    Raises:
        ValueError: The files have no type in common, or Parquet cannot store it.
    """
    files = resolve_files(source)
    schemas = [file_types(file) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        check_columns(dict.fromkeys(keep, "--keep"), schema.names, str(file))
    kept = [
        pa.schema(
            [(n, _kept_type(schema, n, of_candidates=file.candidates is not None)) for n in keep]
        )
        for file, schema in zip(files, schemas, strict=True)
    ]
    if any(schema != kept[0] for schema in kept):
        # Writers make up the types of a part without rows
        held = [has_rows(file) for file in files]
        if any(held):
            files, kept = list(compress(files, held)), list(compress(kept, held))
    read_text = read_text and all(format_of(file).is_text for file in files)
    if read_text:
        kept = [_read_types(file, schema) for file, schema in zip(files, kept, strict=True)]
    largest = [partial(largest_in_file, file, rows_per_chunk=_ROWS) for file in files]
    try:
        types = common_schema(
            files, signed_where_it_fits(kept, largest), partial(_in_common, or_text=read_text)
        )
    except ValueError as error:
        raise ValueError(f"{error}, or do not --keep it") from None
    for field in types:
        _refuse_unwritable(field, files[0])
    return dict(zip(types.names, types.types, strict=True))


def _in_common(there: pa.DataType, here: pa.DataType, or_text: bool) -> pa.DataType | None:
    """The type that holds both; text where there is none, as one file of both would have."""
    if there != here:
        there, here = _decoded(there), _decoded(here)
    known = [kind for kind in (there, here) if not pa.types.is_null(kind)]
    mixed = len({pa.types.is_boolean(kind) for kind in known}) > 1  # would make true 1.0
    both = None if mixed else widen(there, here)
    return pa.string() if both is None and or_text else both


def _decoded(kind: pa.DataType) -> pa.DataType:
    if not isinstance(kind, pa.DictionaryType):
        return kind
    return pa.string() if is_text(kind.value_type) else kind.value_type


def _kept_type(schema: pa.Schema, name: str, *, of_candidates: bool = False) -> pa.DataType:
    """The type that the column came in, if what is read (plain values) can be cast back to it."""
    kind = schema.field(name).type
    if of_candidates:
        kind = _decoded(kind)  # of a request, whose value its candidates repeat
    if is_text(kind):
        return pa.string()
    if isinstance(kind, pa.DictionaryType):
        if is_text(kind.value_type):
            # Other files and chunks may bring more values than the codes have room for, and in
            # another order
            return pa.dictionary(pa.int32(), pa.string())
        return _kept_type(pa.schema([(name, kind.value_type)]), name)  # Arrow codes text alone
    as_read = plain_type(kind)
    if pa.types.is_nested(kind):
        return as_read
    try:
        pa.chunked_array([], as_read).cast(kind)
    except pa.ArrowException:
        return as_read
    return kind


def _read_types(file: DataFile, text: pa.Schema) -> pa.Schema:
    """Finds the type of all cells of each column, read chunk by chunk."""
    found: dict[str, pa.DataType] = dict.fromkeys(text.names, pa.null())
    for table in iter_file(file, text.names, _ROWS):
        for name, there in found.items():
            cells = plain(table[name])
            here = pa.null() if cells.null_count == len(cells) else settle(cells).type
            common = _in_common(there, here, or_text=False)
            found[name] = pa.large_string() if common is None else common
    return pa.schema(
        [
            (name, pa.string() if pa.types.is_null(k) or is_text(k) else k)
            for name, k in found.items()
        ]
    )


def _refuse_unwritable(field: pa.Field, file: DataFile) -> None:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError:
        raise ValueError(
            f"{file}: column {field.name!r}, to be kept, holds {field.type}, which Parquet cannot "
            "store; do not --keep it"
        ) from None


def as_kept(column: pa.ChunkedArray, name: str, kind: pa.DataType, origin: str) -> pa.ChunkedArray:
    """Casts a column that is kept to the type that it has over all files.

    Raises:
        ValueError: It would be rounded.
    """
    if not len(column):
        return pa.chunked_array([], kind)
    if is_text(column.type) and not is_text(_decoded(kind)):
        column = blank_to_null(column)  # cells of CSV, all of which are such values
        if pa.types.is_floating(kind) and loses_digits(column, column.cast(kind)):
            raise ValueError(
                f"{origin}: column {name!r}, to be kept, has whole numbers that {kind}, which "
                "other files need, would round; leave out --keep-types"
            )
        if pa.types.is_boolean(kind):
            flags = to_booleans(column)
            assert flags is not None, "all cells have been looked at"
            return flags
    try:
        return column.cast(kind, safe=pa.types.is_integer(column.type))
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{origin}: column {name!r}, to be kept, holds {column.type} here, but together with "
            f"other files {kind}, which would round it ({error}); write the column with one type, "
            "or do not --keep it"
        ) from None
