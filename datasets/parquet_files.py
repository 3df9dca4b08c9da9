"""Parquet files on pyarrow."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.arrow import may_use_threads, out_of_memory
from mmoe.datasets.data_file import DataFile, is_address
from mmoe.datasets.rows import MissingColumnError, distinct_names

# Bytes of each column read at once, instead of all that a row group has of it. A request to an
# object store takes as long as some megabytes.
_BUFFER, _REMOTE_BUFFER = 1 << 18, 1 << 22


def parquet_columns(path: DataFile) -> list[str]:
    """Names of the top-level columns; of equal ones the second becomes NAME.1, as in CSV."""
    with _open(path) as file:
        return distinct_names(file.schema_arrow.names)


def read_parquet(path: DataFile, columns: list[str] | None) -> pa.Table:
    """The whole file, `columns` in their order.

    Raises:
        ValueError: The file is empty, truncated, no Parquet, or lacks a column.
    """
    with _open(path) as file:
        wanted = _projection(path, file, columns)
        try:
            table = file.read(columns=wanted, use_threads=may_use_threads())
        except (pa.ArrowException, OSError) as error:
            raise _damaged(str(path), error) from None
    return _select(table, columns)


def iter_parquet(
    path: DataFile, columns: list[str] | None, rows: int, row_group: int | None = None
) -> Iterator[pa.Table]:
    """The same rows in the same order, at most `rows` at a time; holds one row group at most.

    Args:
        path: The file.
        columns: Only these, in this order; None = all.
        rows: Most rows of one table.
        row_group: Only this one.
    """
    with _open(path) as file:
        wanted = _projection(path, file, columns)
        groups = None if row_group is None else [row_group]
        where = "" if row_group is None else f": row group {row_group}"
        try:
            for batch in file.iter_batches(
                batch_size=rows, row_groups=groups, columns=wanted, use_threads=may_use_threads()
            ):
                yield _select(pa.Table.from_batches([batch]), columns)
        except (pa.ArrowException, OSError, IndexError) as error:
            raise _damaged(f"{path}{where}", error) from None


def parquet_layout(path: DataFile) -> tuple[pa.Schema, list[int]]:
    """The columns' types and the number of rows of each row group; reads the footer alone."""
    with _open(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        names = distinct_names(schema.names)
        groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        return pa.schema([f.with_name(n) for f, n in zip(schema, names, strict=True)]), groups


def parquet_bytes(path: DataFile, columns: list[str]) -> int:
    """Bytes that the given columns hold, decompressed."""
    with _open(path) as file:
        metadata, total, wanted = file.metadata, 0, set(columns)
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            for c in range(group.num_columns):
                chunk = group.column(c)
                if chunk.path_in_schema.split(".")[0] in wanted:
                    total += chunk.total_uncompressed_size
    return total


@contextmanager
def _open(path: DataFile) -> Iterator[pq.ParquetFile]:
    try:
        if path.size() == 0:
            raise ValueError(f"{path}: is empty (0 bytes); expected a Parquet file")
        remote = is_address(str(path))
        source = path.open() if remote else str(path)
        file = pq.ParquetFile(source, buffer_size=_REMOTE_BUFFER if remote else _BUFFER)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(str(path), error) from None
    try:
        yield file
    finally:
        file.close(force=True)


def _projection(
    path: DataFile, file: pq.ParquetFile, columns: list[str] | None
) -> list[str] | None:
    """What to ask the file for: None (everything) where names repeat and so cannot be asked."""
    raw = list(file.schema_arrow.names)
    names = distinct_names(raw)
    for column in columns or ():
        if column not in names:
            raise MissingColumnError(column, names, str(path))
    return columns if names == raw else None


def _select(table: pa.Table, columns: list[str] | None) -> pa.Table:
    table = table.rename_columns(distinct_names(table.column_names))
    return table if columns is None else table.select(columns)


def _damaged(where: str, error: Exception) -> Exception:
    reason = " ".join(str(error).split())
    return out_of_memory(error, where) or ValueError(
        f"{where}: is truncated or no Parquet file ({reason[:200]}); write or copy it again"
    )
