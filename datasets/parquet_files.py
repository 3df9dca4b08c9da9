"""Parquet files on pyarrow."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.rows import MissingColumnError, distinct_names


def parquet_columns(path: Path) -> list[str]:
    """Names of the top-level columns; of equal ones the second becomes NAME.1, as in CSV."""
    with _open(path) as file:
        return distinct_names(file.schema_arrow.names)


def read_parquet(path: Path, columns: list[str] | None) -> pa.Table:
    """The whole file, `columns` in their order.

    Raises:
        ValueError: The file is empty, truncated, no Parquet, or lacks a column.
    """
    with _open(path) as file:
        wanted = _projection(path, file, columns)
        try:
            table = file.read(columns=wanted)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from None
    return _select(table, columns)


def iter_parquet(path: Path, columns: list[str] | None, rows: int) -> Iterator[pa.Table]:
    """The same rows in the same order, at most `rows` at a time; holds one row group at most."""
    with _open(path) as file:
        wanted = _projection(path, file, columns)
        try:
            for batch in file.iter_batches(batch_size=rows, columns=wanted):
                yield _select(pa.Table.from_batches([batch]), columns)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from None


def _open(path: Path) -> pq.ParquetFile:
    try:
        if path.stat().st_size == 0:
            raise ValueError(f"{path}: is empty (0 bytes); expected a Parquet file")
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _projection(path: Path, file: pq.ParquetFile, columns: list[str] | None) -> list[str] | None:
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


def _damaged(path: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(
        f"{path}: is truncated or no Parquet file ({reason[:200]}); write or copy it again"
    )
