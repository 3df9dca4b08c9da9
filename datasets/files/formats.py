"""One file of any format: Parquet, CSV or Arrow, with the columns that its folders name."""

from collections.abc import Iterator

import pyarrow as pa

from mmoe.datasets.files.csv_files import csv_columns, iter_csv, read_csv
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.ipc_files import ipc_columns, ipc_schema, iter_ipc, read_ipc
from mmoe.datasets.files.parquet_files import (
    Footers,
    iter_parquet,
    parquet_columns,
    parquet_layout,
    read_parquet,
)
from mmoe.datasets.files.resolve import kind_of


def file_columns(file: DataFile) -> list[str]:
    """Lists the file's own columns, then those of its folders (`day=2024-01-31/`)."""
    own = _own_columns(file)
    return own + [name for name in file.partitions if name not in own]


def folder_columns(file: DataFile) -> dict[str, str | None]:
    """Returns columns that folders name and the file has not, each with its one value."""
    if not file.partitions:
        return {}
    own = _own_columns(file)
    return {name: value for name, value in file.partitions.items() if name not in own}


def read_file(file: DataFile, names: list[str]) -> pa.Table:
    """Reads the whole file; columns of folders are text."""
    folders = folder_columns(file)
    own = [name for name in names if name not in folders]
    kind = kind_of(file)
    if kind == "parquet":
        table = read_parquet(file, own)
    else:
        table = read_ipc(file, own) if kind == "ipc" else read_csv(file, own)
    return _with_folders(table, names, folders)


def iter_file(
    file: DataFile,
    names: list[str],
    rows: int,
    row_group: int | None = None,
    folders: dict[str, str | None] | None = None,
    footers: Footers | None = None,
) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, at most about `rows` at a time (CSV: a block).

    Args:
        file: The file.
        names: Only these columns.
        rows: Most rows of a table.
        row_group: Only this one; Parquet alone has them.
        folders: What `folder_columns` said of the file, so that it need not look again.
        footers: Those of Parquet files that are read group by group.
    """
    folders = folder_columns(file) if folders is None else folders
    own = [name for name in names if name not in folders]
    kind = kind_of(file)
    if kind == "parquet":
        tables = iter_parquet(file, own, rows, row_group, footers)
    else:
        tables = iter_ipc(file, own, rows) if kind == "ipc" else iter_csv(file, own)
    for table in tables:
        yield _with_folders(table, names, folders)


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
    """Returns the columns and their types; those of CSV files and of folders are text."""
    kind = kind_of(file)
    if kind == "parquet":
        own = parquet_layout(file)[0]
    elif kind == "ipc":
        own = ipc_schema(file)
    else:
        own = pa.schema([(name, pa.large_string()) for name in csv_columns(file)])
    there = set(own.names)
    return pa.schema(
        [*own, *(pa.field(n, pa.large_string()) for n in file.partitions if n not in there)]
    )


def _own_columns(file: DataFile) -> list[str]:
    kind = kind_of(file)
    if kind == "parquet":
        return parquet_columns(file)
    return ipc_columns(file) if kind == "ipc" else csv_columns(file)
