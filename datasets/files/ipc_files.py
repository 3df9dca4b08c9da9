"""Arrow IPC files: the file format (Feather too), and the stream format.

`pyarrow.dataset` reads the file format alone, and refuses files in which a name repeats.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile, is_address
from mmoe.datasets.rows.locations import distinct_names, refuse_missing, refuse_repeated
from mmoe.datasets.values.arrow import MOST_DEPTH, may_use_threads, out_of_memory, refuse_deep_types

_MAGIC = b"ARROW1"


def ipc_schema(file: DataFile) -> pa.Schema:
    """Returns the columns and their types."""
    with _open(file, None) as (_, schema):
        return schema


def iter_ipc(file: DataFile, columns: list[str] | None, rows: int) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, at most `rows` at a time; holds a record batch.

    Args:
        file: The file.
        columns: Only these, in this order; None = all.
        rows: Most rows of one table.
    """
    with _open(file, columns) as (reader, schema):
        for batch in _batches(file, reader):
            for start in range(0, batch.num_rows, rows):
                try:
                    part = batch.slice(start, rows)
                    part = pa.RecordBatch.from_arrays(part.columns, schema=schema)
                except pa.ArrowException as error:  # here Arrow looks at what it has read
                    raise _damaged(str(file), error) from None
                table = pa.Table.from_batches([part], schema)
                yield table if columns is None else table.select(columns)


def _batches(file: DataFile, reader: Any) -> Iterator[pa.RecordBatch]:
    """Yields batches: the file format by number, the stream format one after another."""
    number = 0
    try:
        if isinstance(reader, pa.RecordBatchFileReader):
            for number in range(reader.num_record_batches):
                yield _checked(reader.get_batch(number))
        else:
            for batch in reader:
                yield _checked(batch)
                number += 1
    except (pa.ArrowException, OSError, IndexError) as error:
        raise _damaged(f"{file}: record batch {number}", error) from None


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Looks at what Arrow believes of a file: where texts and lists begin, which word a cell is."""
    for column in batch.columns:
        if not (pa.types.is_primitive(column.type) or pa.types.is_decimal(column.type)):
            column.validate(full=True)
    return batch


@contextmanager
def _open(file: DataFile, columns: list[str] | None) -> Iterator[tuple[Any, pa.Schema]]:
    """A reader of the columns asked for, and what it reads, in the file's order."""
    try:
        if file.size() == 0:
            raise ValueError(f"{file}: is empty (0 bytes); expected an Arrow file")
        # A memory map would turn a file that shrinks meanwhile into a crash of the process
        source: Any = file.open() if is_address(str(file)) else pa.OSFile(str(file))
        is_file = source.read(len(_MAGIC)) == _MAGIC
        start = pa.ipc.open_file if is_file else pa.ipc.open_stream
        source.seek(0)
        written = start(source).schema
        refuse_deep_types(written, str(file))
        names = distinct_names(written.names)
        schema = pa.schema([f.with_name(name) for f, name in zip(written, names, strict=True)])
        refuse_repeated(columns or (), written.names, str(file))
        refuse_missing(columns or (), names, str(file))
        asked = None if columns is None else set(columns)
        wanted = [n for n, name in enumerate(names) if asked is None or name in asked]
        source.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=may_use_threads())
        reader = start(source, options=options)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(str(file), error) from None
    try:
        yield reader, pa.schema([schema.field(position) for position in wanted])
    finally:
        source.close()


def _damaged(where: str, error: Exception) -> Exception:
    reason = " ".join(str(error).split())
    # Arrow itself goes no deeper than its check of what it is given
    deep = f", or nested more than {MOST_DEPTH} levels deep" if "flatbuffer" in reason else ""
    return out_of_memory(error, where) or ValueError(
        f"{where}: is truncated or no Arrow file{deep} ({reason[:200]}); write or copy it again"
    )
