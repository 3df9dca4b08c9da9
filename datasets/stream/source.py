"""Files as pieces that can be read in any order, with one type for each column."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import iter_file
from mmoe.datasets.files.parquet_files import Footers
from mmoe.datasets.files.readers import plain_columns
from mmoe.datasets.rows.locations import HIDDEN, cast_column, number_rows
from mmoe.datasets.values.missing_words import PLAIN_CELLS, TextCells
from mmoe.datasets.values.text_kind import as_settled

_ENDLESS = 2**62
MOVE = (
    "it was changed after training began; write a new file under another name instead, then start "
    "anew"
)


@dataclass(frozen=True)
class Piece:
    """Rows that are read together: a row group of a Parquet file, or a whole other file.

    Attributes:
        file: Where it is.
        row_group: None = the whole file.
        rows: How many.
        first: Number of its first row in the file.
        before: Number of its first row over all files.
        first_request: Number of its first request in the file, where rows are candidates.
        requests_before: How many the files before have.
    """

    file: DataFile
    row_group: int | None
    rows: int
    first: int
    before: int
    first_request: int = 0
    requests_before: int = 0

    @property
    def where(self) -> str:
        """Name of it in an error message."""
        group = "" if self.row_group is None else f": row group {self.row_group}"
        return f"{self.file}{group}"


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """Rows of files that are one data set, read piece by piece.

    Attributes:
        pieces: In file order; none of them is empty.
        schema: The columns that the run uses, of the types that all files' values fit.
        sizes: Bytes of each file when it was looked at.
        folders: Columns that each file's folders name.
        origin: What the user calls the data.
        chunk_rows: Rows decoded at a time.
        cells: Words that mean a missing value, and columns of keys in which they are null.
        footers: Of the Parquet files among them, whose row groups are read one by one.
    """

    pieces: list[Piece]
    schema: pa.Schema
    sizes: dict[DataFile, int] = field(repr=False)
    folders: dict[DataFile, dict[str, str | None]] = field(repr=False)
    origin: str
    chunk_rows: int
    cells: TextCells = PLAIN_CELLS
    footers: Footers = field(default_factory=Footers, init=False, repr=False, compare=False)

    @property
    def num_rows(self) -> int:
        """Number of rows of all pieces."""
        return sum(piece.rows for piece in self.pieces)

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
        self._refuse_change(piece.file)
        done = 0
        folders, group = self.folders[piece.file], piece.row_group
        request = piece.requests_before + piece.first_request
        tables = iter_file(
            piece.file, columns, self.chunk_rows, group, folders, self.footers, request
        )
        place = [("", piece.requests_before), (str(piece.file), _ENDLESS)]
        for table in tables:
            typed = self.cells.cleaned(self._typed(plain_columns(table), piece))
            for start in range(0, typed.num_rows, self.chunk_rows):
                chunk = typed.slice(start, self.chunk_rows)
                yield piece.before + done, number_rows(chunk, place, piece.first + done)
                done += chunk.num_rows
        if done != piece.rows:
            raise ValueError(f"{piece.where} holds {done:,} rows, not {piece.rows:,}: {MOVE}")

    def _refuse_change(self, file: DataFile) -> None:
        """A file of another size would give other rows, or none."""
        try:
            size = file.size()
        except OSError:
            raise ValueError(
                f"{file}: is gone; it was there when training began: bring it back and say "
                "--resume, or start anew without it"
            ) from None
        if size != self.sizes[file]:
            raise ValueError(f"{file}: has {size:,} bytes, not {self.sizes[file]:,}: {MOVE}")

    def _typed(self, table: pa.Table, piece: Piece) -> pa.Table:
        kinds = dict(zip(self.schema.names, self.schema.types, strict=True))
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            columns[name] = column
            kind = column.type if name in HIDDEN else kinds[name]
            if column.type == kind:
                continue
            try:
                is_text = pa.types.is_large_string(column.type)
                columns[name] = (
                    as_settled(column, kind, self.cells.known)
                    if is_text
                    else cast_column(column, kind)
                )
            except pa.ArrowException as error:
                if isinstance(error, MemoryError):
                    raise
                reason = " ".join(str(error).split())[:200]
                raise ValueError(
                    f"{piece.where}: column {name!r} cannot be read as {kind} ({reason}): {MOVE}"
                ) from None
        return pa.table(columns, metadata=table.schema.metadata)
