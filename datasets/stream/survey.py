"""Surveys files: their pieces, and one type for each column.

Of Parquet files the footers are read; others are read through once, to count rows and to find what
CSV columns hold.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import (
    candidate_counts,
    file_types,
    folder_columns,
    format_of,
    iter_file,
)
from mmoe.datasets.files.parquet_files import parquet_layout
from mmoe.datasets.files.readers import (
    Paths,
    common_schema,
    largest_in_file,
    signed_where_it_fits,
)
from mmoe.datasets.files.resolve import describe, kind_of, resolve_files
from mmoe.datasets.rows.locations import MissingColumnError
from mmoe.datasets.stream.source import Piece, StreamSource
from mmoe.datasets.values.arrow import plain_type
from mmoe.datasets.values.missing_words import PLAIN_CELLS, TextCells
from mmoe.datasets.values.text_kind import TextKind


@dataclass(frozen=True)
class _Found:
    """What one file is like; `groups` are rows of row groups, or of the whole file.

    Where rows are candidates, `requests` are those of each.
    """

    file: DataFile
    size: int
    schema: pa.Schema
    groups: list[int]
    by_group: bool
    requests: list[int]


def survey(
    paths: Paths,
    uses: dict[str, str],
    chunk_rows: int,
    *,
    infer_types: bool = True,
    cells: TextCells = PLAIN_CELLS,
) -> StreamSource:
    """Finds the files, their pieces and the columns' types.

    Args:
        paths: As for `read_table`.
        uses: The columns to read, each with what needs it.
        chunk_rows: Rows decoded at a time.
        infer_types: As for `read_table`.
        cells: As for `read_table`.

    Raises:
        ValueError: A file is missing or damaged, lacks a column, or holds another type of it than
            the others; or there is not one row.
    """
    files, origin = resolve_files(paths), describe(paths)
    settled = [name for name in uses if infer_types and name not in cells.as_text]
    texts = {name: TextKind(cells.known) for name in settled}
    found = [_look_at(file, uses, texts, chunk_rows) for file in files]
    _settle_folders(files, uses, texts)
    held = [one for one in found if any(one.groups)] or found  # others hold no type of anything
    schemas = [_settled_schema(one, texts) for one in held]
    largest = [partial(largest_in_file, one.file, rows_per_chunk=chunk_rows) for one in held]
    schema = common_schema([one.file for one in held], signed_where_it_fits(schemas, largest))
    pieces = _pieces(found)
    if not pieces:
        what = "rows, only columns"
        if any(sum(one.requests) for one in found):
            what = "candidates, as every list of them is empty"
        raise ValueError(f"{origin}: holds no {what}; nothing can be trained on it")
    return StreamSource(
        pieces=pieces,
        schema=schema,
        sizes={one.file: one.size for one in found},
        folders={one.file: folder_columns(one.file) for one in found},
        origin=origin,
        chunk_rows=chunk_rows,
        cells=cells,
    )


def _look_at(
    file: DataFile, uses: dict[str, str], texts: dict[str, TextKind], chunk_rows: int
) -> _Found:
    there, is_text = file_types(file), format_of(file).is_text
    known = set(there.names)
    for name in uses:
        if name not in known:
            raise MissingColumnError(name, there.names, str(file)).needed_by(uses[name])
    nested, is_parquet = file.candidates is not None, kind_of(file) == "parquet"
    kinds = {name: there.field(name).type for name in uses}
    schema = pa.schema([(n, k if nested else plain_type(k)) for n, k in kinds.items()])
    size = file.size()
    if nested:
        counts = candidate_counts(file, chunk_rows)
        groups, requests = [rows for _, rows in counts], [requests for requests, _ in counts]
        return _Found(file, size, schema, groups, is_parquet, requests)
    if is_parquet:
        groups = parquet_layout(file)[1]
        return _Found(file, size, schema, groups, True, [0] * len(groups))
    folders = folder_columns(file)
    own = [name for name in uses if name not in folders] or there.names[:1]
    # Where types are known one column is enough to count the rows.
    rows, asked = 0, own if is_text else own[:1]
    for table in iter_file(file, asked, chunk_rows, folders=folders):
        rows += table.num_rows
        if is_text:
            for name in texts.keys() & set(own):
                texts[name].add(table[name])
    return _Found(file, size, schema, [rows], False, [0])


def _settle_folders(
    files: Iterable[DataFile], uses: dict[str, str], texts: dict[str, TextKind]
) -> None:
    """Columns that folders name hold what all their values together look like."""
    values: dict[str, set[str]] = {}
    for file in files:
        for name, value in file.partitions.items():
            if name in uses and name in texts and value is not None:
                values.setdefault(name, set()).add(value)
    for name, distinct in values.items():
        texts[name].add(pa.chunked_array([pa.array(sorted(distinct), pa.large_string())]))


def _settled_schema(one: _Found, texts: dict[str, TextKind]) -> pa.Schema:
    """Text of CSV files and folders gets the type it looks like."""
    untyped = format_of(one.file).is_text
    fields = []
    for item in one.schema:
        is_text = pa.types.is_large_string(item.type)
        settles = is_text and item.name in texts and (untyped or item.name in one.file.partitions)
        fields.append(item.with_type(texts[item.name].type) if settles else item)
    return pa.schema(fields)


def _pieces(found: list[_Found]) -> list[Piece]:
    pieces, before, requests_before = [], 0, 0
    for one in found:
        first = first_request = 0
        for group, (rows, requests) in enumerate(zip(one.groups, one.requests, strict=True)):
            if rows:  # writers such as Spark leave files without rows
                row_group = group if one.by_group else None
                place = (first, before, first_request, requests_before)
                pieces.append(Piece(one.file, row_group, rows, *place))
            first, before = first + rows, before + rows
            first_request += requests
        requests_before += first_request
    return pieces
