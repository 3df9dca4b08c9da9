"""One file of any format: Parquet, CSV, JSON lines or Arrow, with the columns its folders name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import pyarrow as pa

from mmoe.datasets.files.csv_files import csv_schema, iter_csv, read_csv
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.ipc_files import ipc_schema, iter_ipc
from mmoe.datasets.files.json_lines import iter_json, json_schema
from mmoe.datasets.files.lake import iter_lake, lake_schema
from mmoe.datasets.files.nested import fields_among, flat_schema, unnested
from mmoe.datasets.files.parquet_files import Footers, iter_parquet, parquet_layout, read_parquet
from mmoe.datasets.files.resolve import kind_of
from mmoe.datasets.values.arrow import list_lengths, plain

_ROWS = 1 << 16  # of a chunk, where all of them are joined
_FOOTERS = Footers()  # of files that are read group by group


@dataclass(frozen=True)
class Format:
    """Reader of one kind of file."""

    schema: Callable[[DataFile], pa.Schema]  # the file's own columns and their types
    # Its rows, at most so many at a time (CSV: a block), of columns in their order
    chunks: Callable[[DataFile, list[str], int], Iterator[pa.Table]]
    # All at once, where that is quicker than to join the chunks
    whole: Callable[[DataFile, list[str]], pa.Table] | None = None
    is_text: bool = False  # its cells have no types: they become what all of a column's look like

    def read(self, file: DataFile, names: list[str]) -> pa.Table:
        """Reads the whole file, of columns in their order."""
        if self.whole is not None:
            return self.whole(file, names)
        schema = self.schema(file)
        # Of no column a table that is joined would forget its rows
        parts = list(self.chunks(file, names or schema.names[:1], _ROWS))
        return pa.concat_tables(parts or [schema.empty_table()]).select(names)


# By what `kind_of` says of a file
_FORMATS = MappingProxyType(
    {
        "parquet": Format(lambda file: parquet_layout(file)[0], iter_parquet, read_parquet),
        "csv": Format(csv_schema, iter_csv, read_csv, is_text=True),
        "json": Format(json_schema, iter_json),
        "ipc": Format(ipc_schema, iter_ipc),
        "lake": Format(lake_schema, iter_lake),
    }
)


def format_of(file: DataFile) -> Format:
    """Returns what reads the file."""
    return _FORMATS[kind_of(file)]


def file_columns(file: DataFile) -> list[str]:
    """Lists the file's own columns, then those of its folders (`day=2024-01-31/`)."""
    if file.candidates is not None:
        return file_types(file).names
    own = format_of(file).schema(file).names
    return own + [name for name in file.partitions if name not in own]


def folder_columns(file: DataFile) -> dict[str, str | None]:
    """Returns columns that folders name and the file has not, each with its one value."""
    if not file.partitions:
        return {}
    own = format_of(file).schema(file).names
    return {name: value for name, value in file.partitions.items() if name not in own}


def read_file(file: DataFile, names: list[str]) -> pa.Table:
    """Reads the whole file; columns of folders are text."""
    if file.candidates is not None:
        table = read_file(*_of_requests(file, names))
        return unnested(table, file.candidates, names, str(file), whole=True)
    folders = folder_columns(file)
    own = [name for name in names if name not in folders]
    return _with_folders(format_of(file).read(file, own), names, folders)


def iter_file(
    file: DataFile,
    names: list[str],
    rows: int,
    row_group: int | range | None = None,
    folders: dict[str, str | None] | None = None,
    first_request: int = 0,
) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, at most about `rows` at a time (CSV: a block).

    Args:
        file: The file.
        names: Only these columns.
        rows: Most rows of a table.
        row_group: Only this one, or these; Parquet alone has them.
        folders: What `folder_columns` said of the file, so that it need not look again.
        first_request: Number of the first request that is read, where rows are candidates.

    Raises:
        ValueError: The file cannot be read.
    """
    if file.candidates is not None:
        of_requests, asked = _of_requests(file, names)
        at_once = _requests_at_once(rows)
        tables = iter_file(of_requests, asked, at_once, row_group, folders)
        for table in tables:
            flat = unnested(table, file.candidates, names, str(file), first_request)
            first_request += table.num_rows
            for start in range(0, flat.num_rows, rows):
                yield flat.slice(start, rows)
        return
    folders = folder_columns(file) if folders is None else folders
    own = [name for name in names if name not in folders]
    if row_group is not None:
        tables = iter_parquet(file, own, rows, row_group, _FOOTERS)
    else:
        tables = format_of(file).chunks(file, own, rows)
    for table in tables:
        yield _with_folders(table, names, folders)


def cut_file(file: DataFile, every: int) -> list[range]:
    """Cuts the rows of a Parquet file at each multiple of `every`, by its footer alone.

    Args:
        file: Of any format.
        every: Rows of a span; of requests, where rows are their candidates.

    Returns:
        Spans of row numbers, each of which `iter_tables` reads without what comes before its row
        groups; none of a file of another format, which is read whole.

    Raises:
        ValueError: It cannot be read.
    """
    if kind_of(file) != "parquet":
        return []
    rows = sum(parquet_layout(file)[1])
    return [range(first, min(first + every, rows)) for first in range(0, rows, every)]


def has_rows(file: DataFile) -> bool:
    """Returns whether the file, or a list of candidates in it, holds any row."""
    if kind_of(file) == "parquet" and file.candidates is None:
        return any(parquet_layout(file)[1])
    # The last one, as columns before it may have its name
    asked = [name for name in file_types(file).names if name not in file.partitions][-1:]
    return any(table.num_rows for table in iter_file(file, asked, 1))


def _with_folders(table: pa.Table, names: list[str], folders: dict[str, str | None]) -> pa.Table:
    """Adds the folders' columns, as text, and brings all into the order of `names`."""
    if not folders:
        return table
    for name in names:
        if name in folders:
            column = pa.repeat(pa.scalar(folders[name], pa.large_string()), table.num_rows)
            table = table.append_column(name, column)
    return table.select(names)


def file_types(file: DataFile) -> pa.Schema:
    """Returns the columns and their types; those of CSV files and of folders are text.

    Where rows are candidates, columns beside them are dictionaries (`unnested`).
    """
    if file.candidates is not None:
        types = _request_types(file, file.state())
        return flat_schema(types, file.candidates, str(file), file.known)
    own = format_of(file).schema(file)
    there = set(own.names)
    return pa.schema(
        [*own, *(pa.field(n, pa.large_string()) for n in file.partitions if n not in there)]
    )


def candidate_counts(file: DataFile, rows: int) -> list[tuple[int, int]]:
    """Counts requests and candidates of each row group of a Parquet file, or of another file.

    Args:
        file: Whose rows are candidates.
        rows: Read at a time.
    """
    of_requests, asked = _of_requests(file, [])
    is_parquet = kind_of(file) == "parquet"
    groups = range(len(parquet_layout(file)[1])) if is_parquet else [None]
    found = []
    for group in groups:
        tables = iter_file(of_requests, asked, _requests_at_once(rows), group)
        lengths = (list_lengths(plain(table[asked[-1]])) for table in tables)
        counts = [(len(of_some), int(of_some.sum())) for of_some in lengths]
        found.append((sum(n for n, _ in counts), sum(n for _, n in counts)))
    return found


@lru_cache(maxsize=1024)
def _request_types(file: DataFile, state: object) -> pa.Schema:
    """Columns of the file as it is: a row is a request."""
    return file_types(replace(file, candidates=None))


def _of_requests(file: DataFile, names: list[str]) -> tuple[DataFile, list[str]]:
    """The file as one of requests, and the columns of it that hold these columns of candidates."""
    assert file.candidates is not None, "rows are candidates"
    beside = _request_types(file, file.state())
    fields = fields_among(names, beside, file.candidates, str(file), file.known)
    there = set(beside.names) - {file.candidates}
    asked = [name for name in names if name in there]
    return replace(file, candidates=None, fields=tuple(fields)), [*asked, file.candidates]


def _requests_at_once(rows: int) -> int:
    """Number of requests to read at once, by the candidates of a page of search results."""
    return max(rows // 16, 1)
