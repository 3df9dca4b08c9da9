"""Parquet files on pyarrow.

`pyarrow.dataset` takes as long and as much memory, and refuses files in which a name repeats.

How deep columns are nested is read in the footer (Thrift's compact protocol) before Arrow goes down
into them: versions of Arrow before 26 end the process there.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.files.data_file import DataFile, is_address
from mmoe.datasets.rows.locations import distinct_names, refuse_missing, refuse_repeated
from mmoe.datasets.values.arrow import MOST_DEPTH, may_use_threads, out_of_memory, plain, too_deep

# Kinds of values in Thrift's compact protocol
_BOOLEANS, _INTEGERS, _TEXT, _LISTS, _MAP, _STRUCT = (1, 2), (4, 5, 6), 8, (9, 10), 11, 12
_SIZES = {3: 1, 7: 8, 13: 16}  # bytes of the others: byte, double, UUID
_SCHEMA, _NAME, _CHILDREN = 2, (4, _TEXT), (5, 5)  # fields of a footer, and of its elements


def refuse_deep(footer: bytes, origin: str) -> None:
    """Refuses a footer whose schema is nested deeper than data is.

    What cannot be followed is left to Arrow, which says what is wrong with it.

    Args:
        footer: `FileMetaData`, as it is written.
        origin: Starts error messages.

    Raises:
        ValueError: A column, which it names, has more than `MOST_DEPTH` groups inside one another.
    """
    stream = BytesIO(footer)
    try:
        for field, kind in _fields(stream):
            if field == _SCHEMA and kind in _LISTS:
                return _refuse_deep(stream, origin)
            _value(stream, kind)
    except (IndexError, OverflowError, RecursionError):
        return None


def _refuse_deep(stream: BytesIO, origin: str) -> None:
    elements, _ = _list_header(stream)
    top = _value(stream, _STRUCT).get(_CHILDREN, 0)
    if elements - 1 - top <= MOST_DEPTH:
        return  # too few groups, as where no column has any
    column, left = b"", [top]  # of each group that is open, the elements to come
    for _ in range(elements - 1):
        while left and left[-1] <= 0:
            left.pop()
        element = _value(stream, _STRUCT)
        column = element.get(_NAME, b"") if len(left) <= 1 else column
        if left:
            left[-1] -= 1
        left.append(element.get(_CHILDREN, 0))
        if len(left) - 2 > MOST_DEPTH:
            raise too_deep(column.decode(errors="replace"), origin)


def _fields(stream: BytesIO) -> Iterator[tuple[int, int]]:
    """Number and kind of each field of a struct; who gets one has to read its value."""
    number = 0
    while (start := _take(stream, 1)[0]) & 0x0F:
        number = number + (start >> 4) if start >> 4 else _value(stream, _INTEGERS[0])
        yield number, start & 0x0F


def _value(stream: BytesIO, kind: int, *, in_list: bool = False) -> Any:
    """Reads a value; of a struct the values by number and kind of their fields."""
    if kind in _BOOLEANS:  # in a struct the kind says which
        return _take(stream, int(in_list))
    if kind in _INTEGERS:
        found = _varint(stream)
        return (found >> 1) ^ -(found & 1)
    if kind == _STRUCT:
        return {field: _value(stream, field[1]) for field in _fields(stream)}
    if kind in _LISTS:
        size, item = _list_header(stream)
        return [_value(stream, item, in_list=True) for _ in range(size)]
    if kind == _MAP:
        size = _varint(stream)
        kinds = divmod(_take(stream, 1)[0], 16) if size else ()
        return [_value(stream, one, in_list=True) for _ in range(size) for one in kinds]
    return _take(stream, _varint(stream) if kind == _TEXT else _SIZES.get(kind, 1 << 62))


def _list_header(stream: BytesIO) -> tuple[int, int]:
    """How many items a list has, and their kind."""
    size, kind = divmod(_take(stream, 1)[0], 16)
    return (_varint(stream) if size == 15 else size), kind


def _varint(stream: BytesIO) -> int:
    found = shift = 0
    while (byte := _take(stream, 1)[0]) & 0x80 and shift < 64:
        found |= (byte & 0x7F) << shift
        shift += 7
    return found | byte << shift


def _take(stream: BytesIO, size: int) -> bytes:
    if len(found := stream.read(size)) < size:
        raise IndexError  # it ends before what it holds
    return found


# Bytes of each column read at once, instead of all that a row group has of it. A request to an
# object store takes as long as some megabytes.
_BUFFER, _REMOTE_BUFFER = 1 << 18, 1 << 22
_MAGIC = b"PAR1"
_TAIL = 1 << 16  # bytes in which most footers are
_LEVELS_OF_LIST = 3  # names before a field of a list's items: the column, list, element


def read_parquet(path: DataFile, columns: list[str] | None) -> pa.Table:
    """Reads the whole file, `columns` in their order.

    Raises:
        ValueError: The file is empty, truncated, no Parquet, or lacks a column.
    """
    with _open(path) as file:
        wanted = _projection(path, file, columns)
        if _codes_in_lists(file):
            groups = range(file.num_row_groups)
            parts = [_plain_group(file, group, wanted) for group in groups]
            table = pa.concat_tables(parts) if parts else file.read(columns=wanted)
        else:
            table = file.read(columns=wanted, use_threads=may_use_threads())
    return _select(table, columns)


class Footers:
    """Cache of footers of files that are read row group by row group: each is parsed once.

    A footer describes all row groups of its file, so parsing it for each of them would take time
    that grows with their square. Those used last are kept, up to so many bytes; a file that was
    written anew is parsed anew. Any number of threads may share one.

    Args:
        most_bytes: Of all footers together, as they lie in their files.
    """

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self.most_bytes = most_bytes
        self._known: OrderedDict[str, tuple[object, pq.FileMetaData]] = OrderedDict()
        self._lock = Lock()

    def get(self, path: DataFile, state: object) -> pq.FileMetaData | None:
        """Returns the footer of the file as it is now; None where it has to be parsed."""
        with self._lock:
            known, footer = self._known.get(str(path), (None, None))
            if footer is None or known != state:
                return None
            self._known.move_to_end(str(path))
            return footer

    def keep(self, path: DataFile, state: object, footer: pq.FileMetaData) -> None:
        """Remembers a footer, and forgets those that nobody has asked for in a while."""
        with self._lock:
            self._known[str(path)] = state, footer
            self._known.move_to_end(str(path))
            held = sum(footer.serialized_size for _, footer in self._known.values())
            while held > self.most_bytes and len(self._known) > 1:
                held -= self._known.popitem(last=False)[1][1].serialized_size


def iter_parquet(
    path: DataFile,
    columns: list[str] | None,
    rows: int,
    row_group: int | range | None = None,
    footers: Footers | None = None,
) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, at most `rows` at a time; holds one row group.

    Args:
        path: The file.
        columns: Only these, in this order; None = all.
        rows: Most rows of one table.
        row_group: Only this one, or these.
        footers: Where the file's may be, or shall be kept.
    """
    one = isinstance(row_group, int)
    groups = [row_group] if one else None if row_group is None else list(row_group)
    with _open(path, footers, f": row group {row_group}" if one else "") as file:
        wanted = _projection(path, file, columns)
        if _codes_in_lists(file):
            for group in range(file.num_row_groups) if groups is None else groups:
                table = _plain_group(file, group, wanted)
                for first in range(0, table.num_rows, rows):
                    yield _select(table.slice(first, rows), columns)
            return
        for batch in file.iter_batches(
            batch_size=rows, row_groups=groups, columns=wanted, use_threads=may_use_threads()
        ):
            yield _select(pa.Table.from_batches([batch]), columns)


def _codes_in_lists(file: pq.ParquetFile) -> bool:
    """Whether lists hold dictionaries, which Arrow reads of one row group at a time alone."""
    return any(_holds_codes(field.type) for field in file.schema_arrow)


def _holds_codes(kind: pa.DataType) -> bool:
    inside = [kind.field(n).type for n in range(kind.num_fields)]
    return any(isinstance(k, pa.DictionaryType) or _holds_codes(k) for k in inside)


def _plain_group(file: pq.ParquetFile, group: int, wanted: list[str] | None) -> pa.Table:
    """Reads a row group with dictionaries in lists decoded, which differ between groups."""
    table = file.read_row_group(group, columns=wanted, use_threads=may_use_threads())
    columns = [plain(column) if _holds_codes(column.type) else column for column in table.columns]
    return pa.table(columns, names=table.column_names)


def parquet_layout(path: DataFile) -> tuple[pa.Schema, list[int]]:
    """Reads the columns' types and the rows of each row group, from the footer alone."""
    with _open(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        names = distinct_names(schema.names)
        groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        return pa.schema([f.with_name(n) for f, n in zip(schema, names, strict=True)]), groups


def parquet_bytes(path: DataFile, columns: list[str]) -> int:
    """Returns the bytes that the given columns hold, decompressed."""
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
def _open(
    path: DataFile, footers: Footers | None = None, where: str = ""
) -> Iterator[pq.ParquetFile]:
    try:
        state = path.state()
        if state[0] == 0:
            raise ValueError(f"{path}: is empty (0 bytes); expected a Parquet file")
        remote = is_address(str(path))
        source = path.open() if remote else str(path)
        footer = None if footers is None else footers.get(path, state)
        if footer is None:
            footer = _footer(path, source if remote else None, state[0])
            if footers is not None and footer is not None:
                footers.keep(path, state, footer)
        buffer = _REMOTE_BUFFER if remote else _BUFFER
        file = pq.ParquetFile(source, metadata=footer, buffer_size=buffer)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(str(path), error) from None
    try:
        yield file
    except (pa.ArrowException, OSError, IndexError) as error:
        raise _damaged(f"{path}{where}", error, file.schema_arrow) from None
    finally:
        file.close(force=True)


def _footer(path: DataFile, source: Any, size: int) -> pq.FileMetaData | None:
    """The footer, once it is known to be no deeper than data is; None: Arrow says what is wrong."""
    with nullcontext(source) if source is not None else path.open() as stream:
        stream.seek(max(size - _TAIL, 0))
        tail = stream.read(_TAIL)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if tail[-4:] != _MAGIC or not 8 < length <= size:
            return None
        if length > len(tail):
            stream.seek(size - length)
            tail = stream.read(length)
    refuse_deep(tail[-length:-8], str(path))
    return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-length:]))


def _projection(
    path: DataFile, file: pq.ParquetFile, columns: list[str] | None
) -> list[str] | None:
    """Returns the columns to ask for: None (everything) where names repeat."""
    raw = list(file.schema_arrow.names)
    names = distinct_names(raw)
    refuse_missing(columns or (), names, str(path))
    refuse_repeated(raw if columns is None else columns, raw, str(path))
    if names != raw:
        return None
    return (
        columns if path.fields is None else [*(columns or ())[:-1], *_leaves(path, file, columns)]
    )


def _leaves(path: DataFile, file: pq.ParquetFile, columns: list[str] | None) -> list[str]:
    """Finds the fields read of the last column's items; a small one, if none."""
    assert columns and path.fields is not None, "a column of lists is asked for"
    inside = {}
    for number in range(len(file.schema)):
        place = file.schema.column(number).path
        parts = place.split(".")
        if parts[0] == columns[-1] and len(parts) > _LEVELS_OF_LIST:
            prefix = ".".join(parts[: _LEVELS_OF_LIST + 1])
            inside.setdefault(prefix, (parts[_LEVELS_OF_LIST], []))[1].append(number)
    if not inside or not set(path.fields) <= {field for field, _ in inside.values()}:
        return columns[-1:]  # a field whose name has a dot is not told from one inside it
    wanted = [prefix for prefix, (field, _) in inside.items() if field in path.fields]
    if wanted:
        return wanted
    if not file.num_row_groups:
        return [next(iter(inside))]
    group = file.metadata.row_group(0)  # alone, as others may be many
    sizes = {
        prefix: sum(group.column(n).total_compressed_size for n in numbers)
        for prefix, (_, numbers) in inside.items()
    }
    return [min(sizes, key=lambda prefix: sizes[prefix])]


def _select(table: pa.Table, columns: list[str] | None) -> pa.Table:
    table = table.rename_columns(distinct_names(table.column_names))
    return table if columns is None else table.select(columns)


def _damaged(where: str, error: Exception, schema: pa.Schema | None = None) -> Exception:
    reason = " ".join(str(error).split())
    if isinstance(error, pa.ArrowNotImplementedError):
        names = [field.name for field in schema or () if pa.types.is_nested(field.type)]
        which = f"what is nested in other ways than plain lists: {', '.join(names)}"
        return ValueError(
            f"{where}: Arrow cannot read a column as it is stored ({reason[:200]}); "
            f"leave out {which if names else 'it'}, or write it in another way"
        )
    return out_of_memory(error, where) or ValueError(
        f"{where}: is truncated or no Parquet file ({reason[:200]}); write or copy it again"
    )
