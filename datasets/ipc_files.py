"""Arrow IPC files: the file format (Feather too), and the stream format."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from mmoe.datasets.data_file import DataFile, is_address
from mmoe.datasets.rows import MissingColumnError, distinct_names

_MAGIC = b"ARROW1"


def ipc_columns(file: DataFile) -> list[str]:
    """Names of the columns; of equal ones the second becomes NAME.1, as in CSV."""
    with _open(file) as reader:
        return distinct_names(reader.schema.names)


def read_ipc(file: DataFile, columns: list[str] | None) -> pa.Table:
    """The whole file, `columns` in their order.

    Raises:
        ValueError: The file is empty, truncated, no Arrow file, or lacks a column.
    """
    with _open(file) as reader:
        schema = _projected(file, reader.schema, columns)
        batches = [_select(batch, schema) for batch in _batches(file, reader)]
    return pa.Table.from_batches(batches, schema)


def iter_ipc(file: DataFile, columns: list[str] | None, rows: int) -> Iterator[pa.Table]:
    """The same rows in the same order, at most `rows` at a time; holds one record batch."""
    with _open(file) as reader:
        schema = _projected(file, reader.schema, columns)
        for batch in _batches(file, reader):
            for start in range(0, batch.num_rows, rows):
                part = _select(batch.slice(start, rows), schema)
                yield pa.Table.from_batches([part], schema)


def ipc_schema(file: DataFile) -> pa.Schema:
    """The columns and their types."""
    with _open(file) as reader:
        names = distinct_names(reader.schema.names)
        return pa.schema([f.with_name(n) for f, n in zip(reader.schema, names, strict=True)])


def _batches(file: DataFile, reader: Any) -> Iterator[pa.RecordBatch]:
    """One at a time: the file format by number, the stream format one after another."""
    number = 0
    try:
        if isinstance(reader, pa.RecordBatchFileReader):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            for batch in reader:
                yield batch
                number += 1
    except (pa.ArrowException, OSError) as error:
        raise _damaged(f"{file}: record batch {number}", error) from None


@contextmanager
def _open(file: DataFile) -> Iterator[Any]:
    try:
        if file.size() == 0:
            raise ValueError(f"{file}: is empty (0 bytes); expected an Arrow file")
        # A memory map would turn a file that shrinks meanwhile into a crash of the process.
        source = file.open() if is_address(str(file)) else pa.OSFile(str(file))
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(str(file), error) from None
    try:
        yield reader
    finally:
        source.close()


def _projected(file: DataFile, schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    names = distinct_names(schema.names)
    for column in columns or ():
        if column not in names:
            raise MissingColumnError(column, names, str(file))
    wanted = names if columns is None else columns
    return pa.schema([schema.field(names.index(name)).with_name(name) for name in wanted])


def _select(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    names = distinct_names(batch.schema.names)
    arrays = [batch.column(names.index(name)) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _damaged(where: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(
        f"{where}: is truncated or no Arrow file ({reason[:200]}); write or copy it again"
    )
