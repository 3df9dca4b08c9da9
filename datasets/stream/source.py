"""Files as pieces that can be read in any order, with one type for each column, and their splits.

Of Parquet files the footers are read; others are read through once, to count rows and to find what
CSV columns hold.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from mmoe.config import RequestsConfig, SplitConfig
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
    plain_columns,
    signed_where_it_fits,
)
from mmoe.datasets.files.resolve import describe, kind_of, resolve_files
from mmoe.datasets.rows.locations import HIDDEN, MissingColumnError, cast_column, number_rows
from mmoe.datasets.rows.order import Take
from mmoe.datasets.rows.requests import find_requests
from mmoe.datasets.rows.splits import RowSource, Splitter, refuse_cut, request_column
from mmoe.datasets.values.arrow import plain_type
from mmoe.datasets.values.text import PLAIN_CELLS, TextCells, TextKind, as_settled

_ENDLESS = 2**62
_ROWS = 1 << 17  # row numbers hashed at a time
MOVE = (
    "it was changed after training began; write a new file under another name instead, then start "
    "anew"
)


@dataclass(frozen=True)
class Piece:
    """Rows that are read together: a row group of a Parquet file, or a whole other file."""

    file: DataFile  # where it is
    row_group: int | None  # none = the whole file
    rows: int  # how many
    first: int  # number of its first row in the file
    before: int  # number of its first row over all files
    first_request: int = 0  # number of its first request in the file, where rows are candidates
    requests_before: int = 0  # how many the files before have

    @property
    def where(self) -> str:
        """Name of it in an error message."""
        group = "" if self.row_group is None else f": row group {self.row_group}"
        return f"{self.file}{group}"


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """Rows of files that are one data set, read piece by piece."""

    pieces: list[Piece]  # in file order; none of them is empty
    schema: pa.Schema  # the columns that the run uses, of the types that all files' values fit
    sizes: dict[DataFile, int] = field(repr=False)  # bytes of each file when it was looked at
    # Columns that each file's folders name
    folders: dict[DataFile, dict[str, str | None]] = field(repr=False)
    origin: str  # what the user calls the data
    chunk_rows: int  # rows decoded at a time
    # Words that mean a missing value, and columns of keys in which they are null
    cells: TextCells = PLAIN_CELLS

    @property
    def num_rows(self) -> int:
        """Number of rows of all pieces."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def rows(self) -> RowSource:
        """All rows, for what looks through them."""
        return RowSource(self.origin, self.schema, self.num_rows, self.tables)

    def tables(self, columns: list[str]) -> Iterator[tuple[str, pa.Table]]:
        """Yields all rows in order, each table with the name of its file."""
        for piece in self.pieces:
            for _, table in self.read(piece, columns):
                yield str(piece.file), table

    def read(self, piece: Piece, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yields the piece's rows in order, in chunks.

        Args:
            piece: One of `pieces`.
            columns: Names in `schema`.

        Yields:
            The number over all files of the chunk's first row, and the chunk, whose hidden column
            lets error messages name file and row.

        Raises:
            ValueError: The file is gone or is not what it was; names file and row group.
        """
        try:  # a file of another size would give other rows, or none
            size, known = piece.file.size(), self.sizes[piece.file]
        except OSError:
            raise ValueError(
                f"{piece.file}: is gone; it was there when training began: bring it back and say "
                "--resume, or start anew without it"
            ) from None
        if size != known:
            raise ValueError(f"{piece.file}: has {size:,} bytes, not {known:,}: {MOVE}")
        done = 0
        folders, group = self.folders[piece.file], piece.row_group
        request = piece.requests_before + piece.first_request
        tables = iter_file(piece.file, columns, self.chunk_rows, group, folders, request)
        place = [("", piece.requests_before), (str(piece.file), _ENDLESS)]
        for table in tables:
            typed = self.cells.cleaned(self._typed(plain_columns(table), piece))
            for start in range(0, typed.num_rows, self.chunk_rows):
                chunk = typed.slice(start, self.chunk_rows)
                yield piece.before + done, number_rows(chunk, place, piece.first + done)
                done += chunk.num_rows
        if done != piece.rows:
            raise ValueError(f"{piece.where} holds {done:,} rows, not {piece.rows:,}: {MOVE}")

    def _typed(self, table: pa.Table, piece: Piece) -> pa.Table:
        kinds = dict(zip(self.schema.names, self.schema.types, strict=True))
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            columns[name] = column
            kind = column.type if name in HIDDEN else kinds[name]
            if column.type == kind:
                continue
            try:
                if pa.types.is_large_string(column.type):
                    columns[name] = as_settled(column, kind, self.cells.known)
                else:
                    columns[name] = cast_column(column, kind)
            except pa.ArrowException as error:
                if isinstance(error, MemoryError):
                    raise
                reason = " ".join(str(error).split())[:200]
                raise ValueError(
                    f"{piece.where}: column {name!r} cannot be read as {kind} ({reason}): {MOVE}"
                ) from None
        return pa.table(columns, metadata=table.schema.metadata)


@dataclass(frozen=True)
class _Found:
    """What one file is like."""

    file: DataFile
    size: int
    schema: pa.Schema
    # Of each row group, or of the whole file: requests, where rows are candidates, and rows
    counts: list[tuple[int, int]]

    @property
    def has_rows(self) -> bool:
        return any(rows for _, rows in self.counts)


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
    held = [one for one in found if one.has_rows] or found  # others hold no type of anything
    schemas = [_settled_schema(one, texts) for one in held]
    largest = [partial(largest_in_file, one.file, rows_per_chunk=chunk_rows) for one in held]
    schema = common_schema([one.file for one in held], signed_where_it_fits(schemas, largest))
    pieces = _pieces(found)
    if not pieces:
        what = "rows, only columns"
        if any(requests for one in found for requests, _ in one.counts):
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
    nested = file.candidates is not None
    kinds = {name: there.field(name).type for name in uses}
    schema = pa.schema([(n, k if nested else plain_type(k)) for n, k in kinds.items()])
    size = file.size()
    if nested:
        return _Found(file, size, schema, candidate_counts(file, chunk_rows))
    if kind_of(file) == "parquet":
        return _Found(file, size, schema, [(0, rows) for rows in parquet_layout(file)[1]])
    folders = folder_columns(file)
    own = [name for name in uses if name not in folders] or there.names[:1]
    # Where types are known one column is enough to count the rows.
    rows, asked = 0, own if is_text else own[:1]
    for table in iter_file(file, asked, chunk_rows, folders=folders):
        rows += table.num_rows
        if is_text:
            for name in texts.keys() & set(own):
                texts[name].add(table[name])
    return _Found(file, size, schema, [(0, rows)])


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
        by_group = kind_of(one.file) == "parquet"
        for group, (requests, rows) in enumerate(one.counts):
            if rows:  # writers such as Spark leave files without rows
                row_group = group if by_group else None
                place = (first, before, first_request, requests_before)
                pieces.append(Piece(one.file, row_group, rows, *place))
            first, before = first + rows, before + rows
            first_request += requests
        requests_before += first_request
    return pieces


def count_splits(
    source: StreamSource,
    splitter: Splitter,
    split: SplitConfig,
    requests: RequestsConfig | None = None,
) -> np.ndarray:
    """Counts rows of each piece and split, int64 [P, 3]; reads at most the columns of the split.

    Args:
        source: The files.
        splitter: Which split a row belongs to.
        split: What it was made of.
        requests: Of which none may be in two splits; looked at within what is decoded at a time.

    Raises:
        ValueError: A request is cut.
    """
    counts_P3 = np.zeros((len(source.pieces), 3), np.int64)
    columns = list(splitter.columns)
    requests = None if split.by == "random" else requests  # draws them whole
    if columns and requests is not None:
        columns = list(dict.fromkeys([*columns, request_column(requests)]))
    for p, piece in enumerate(source.pieces):
        if not columns:
            for start in range(0, piece.rows, _ROWS):
                rows = min(_ROWS, piece.rows - start)
                split_N = splitter.of(None, piece.before + start, rows)
                counts_P3[p] += np.bincount(split_N, minlength=4)[:3]
        else:
            for first, table in source.read(piece, columns):
                split_N = splitter.of(table, first, table.num_rows)
                if requests is not None:
                    found = find_requests(requests, table, source.origin)
                    refuse_cut(split_N, found, table, split, source.origin)
                counts_P3[p] += np.bincount(split_N, minlength=4)[:3]
    return counts_P3


@dataclass(frozen=True, kw_only=True)
class Split:
    """Rows of a source that belong to one split."""

    source: StreamSource  # the files
    splitter: Splitter  # which split a row belongs to
    number: int  # the one that is meant
    counts_P: np.ndarray  # rows of each piece that belong to it

    def __len__(self) -> int:
        return int(self.counts_P.sum())

    def tables(self, piece: int, columns: list[str]) -> Iterator[pa.Table]:
        """Yields the split's rows of one piece, in order, in chunks."""
        asked = list(dict.fromkeys([*columns, *self.splitter.columns]))
        for first, table in self.source.read(self.source.pieces[piece], asked):
            mine_N = self.splitter.of(table, first, table.num_rows) == self.number
            if mine_N.all():
                yield table
            elif mine_N.any():
                yield table.filter(pa.array(mine_N))


@dataclass
class _Open:
    """A piece that is being read: the rows still to come, and those decoded already."""

    tables: Iterator[pa.Table]
    rest: pa.Table | None = None
    done: int = 0  # rows handed out or passed over


class PieceReader:
    """Takes rows from several pieces in turns; each stays open until its last row is taken.

    Args:
        split: Which rows.
        columns: To read.
    """

    def __init__(self, split: Split, columns: list[str]) -> None:
        self.split, self.columns = split, columns
        self.open: dict[int, _Open] = {}

    def take(self, take: Take) -> Iterator[pa.Table]:
        """Yields the rows of one take; it never goes back within a piece.

        Raises:
            ValueError: The file holds fewer rows than before.
        """
        piece = self.open.get(take.piece)
        if piece is None:
            piece = self.open[take.piece] = _Open(self.split.tables(take.piece, self.columns))
        for _ in self._next(piece, take.piece, take.start - piece.done):
            pass
        yield from self._next(piece, take.piece, take.rows)
        if piece.done == self.split.counts_P[take.piece]:
            del self.open[take.piece]

    def _next(self, piece: _Open, number: int, rows: int) -> Iterator[pa.Table]:
        while rows:
            table = piece.rest if piece.rest is not None else next(piece.tables, None)
            if table is None:
                where = self.split.source.pieces[number].where
                raise ValueError(f"{where} holds other rows than before: {MOVE}")
            rows_here = table.slice(0, rows)
            piece.rest = table.slice(rows) if table.num_rows > rows else None
            piece.done += rows_here.num_rows
            rows -= rows_here.num_rows
            yield rows_here
