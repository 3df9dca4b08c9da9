"""Arrow as this library uses it: its functions, threads where memory is short, and plain types.

Where a process' memory is limited (`ulimit -v`), Arrow may fail to start a thread of its pool and
then waits for ever for what that thread was to do, so there it decodes in the thread that calls it.

Every column is made plain where it is read or found, so nobody else need think of dictionaries,
views, runs or extension types.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from mmoe.process_settings import is_tuned

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None

pc: Any = pyarrow.compute

# Stacks of the few threads that torch and Arrow start in any case (8 MiB each), and a little
_ROOM_BYTES = 64 << 20
_M_ARENA_MAX = -8  # of mallopt(3)


def may_use_threads() -> bool:
    """Returns whether Arrow may decode on several threads: not where memory is limited."""
    return resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def check_room() -> None:
    """Refuses to begin where memory is too short to start threads.

    Where memory is limited glibc's threads also share one heap from then on: else each reserves
    128 MiB of it at first, whatever it needs. (Not where the user set glibc's variables, nor in a
    process that is not ours to change: `mmoe.tune_process`.)

    Raises:
        MemoryError: The process' limit leaves less.

    Example:
        >>> from mmoe.datasets.values.arrow import check_room
        >>> check_room()
    """
    if may_use_threads():
        return
    try:
        mmap.mmap(-1, _ROOM_BYTES).close()
    except OSError:
        raise MemoryError(
            f"the limit of this process (ulimit -v) leaves less than {_ROOM_BYTES >> 20} MiB"
        ) from None
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if (
        mallopt is not None
        and is_tuned()
        and not any(name.startswith("MALLOC_") for name in os.environ)
    ):
        mallopt(_M_ARENA_MAX, 1)


def out_of_memory(error: Exception, where: str) -> MemoryError | None:
    """Returns what to raise where an Arrow error means that memory ran out.

    Arrow's own is an ArrowException as well, which elsewhere means a damaged file.
    """
    reason = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "Failed to launch worker thread" in reason:
        return MemoryError(f"{where}: {reason[:200]}")
    return None


_MOST_DIGITS = 76  # of a decimal
ANY_INTEGER = pa.decimal128(20, 0)  # of 64 bits, with a sign or without
MOST_DEPTH = 64  # of lists and objects inside one another; parsers and types go down by calls


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Casts a column to `plain_type` of its type.

    Example:
        >>> views = pa.chunked_array([pa.array(["a", None], pa.string_view())])
        >>> plain(views).type, plain(views).to_pylist()
        (DataType(large_string), ['a', None])
    """
    wanted = plain_type(column.type)
    if wanted == column.type:
        return column
    return pa.chunked_array([_plain(chunk) for chunk in column.chunks], wanted)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type that `plain` gives a column of this type.

    Text is large_string (no limit of 2 GB); dictionaries and runs are decoded; views are what they
    show; an extension type is what it is stored as; small decimals and floats are wider ones. Maps,
    structs and unions stay: nobody reads them.
    """
    if isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if is_text(kind):
        return pa.large_string()
    if kind == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind) and kind.scale < 0:
        digits = kind.precision - kind.scale  # whole numbers: Arrow computes with no others
        wider = pa.decimal128 if digits <= _MOST_DIGITS // 2 else pa.decimal256
        return wider(digits, 0) if digits <= _MOST_DIGITS else pa.float64()
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return _plain_list(kind) if _is_any_list(kind) else kind


def refuse_deep_types(schema: pa.Schema, origin: str) -> None:
    """Refuses a column whose type is nested deeper than data is, before anything goes down it.

    Raises:
        ValueError: It is nested more than `MOST_DEPTH` levels deep.
    """
    for name, kind in zip(schema.names, schema.types, strict=True):
        level, depth = _inside(kind), 1
        while level and depth <= MOST_DEPTH:
            depth += 1
            level = [inner for some in level for inner in _inside(some)]
        if level:
            raise too_deep(name, origin)


def too_deep(column: str, origin: str) -> ValueError:
    """Returns the refusal of a column that is nested too deeply."""
    return ValueError(
        f"{origin}: column {column[:80]!r} is nested more than {MOST_DEPTH} levels deep, expected "
        "numbers, text and lists of them; write the file without it"
    )


def _inside(kind: pa.DataType) -> list[pa.DataType]:
    """Types that a type is made of."""
    if kind.num_fields:
        return [kind.field(n).type for n in range(kind.num_fields)]
    if isinstance(kind, pa.DictionaryType):
        return [kind.value_type]
    return [kind.storage_type] if isinstance(kind, pa.BaseExtensionType) else []


def is_text(kind: pa.DataType) -> bool:
    """Returns whether it is a type of strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()


def is_numeric(kind: pa.DataType) -> bool:
    """Returns whether it is a type of numbers: integers, floats or decimals."""
    plainly = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return plainly or pa.types.is_decimal(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Returns whether it is a plain type of bytes."""
    plainly = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return plainly or pa.types.is_fixed_size_binary(kind)


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns plain bytes that are UTF-8, as Parquet's BINARY often holds text, as that text.

    Example:
        >>> decoded(pa.chunked_array([[b"Oslo", None]])).to_pylist()
        ['Oslo', None]
    """
    if not is_binary(column.type):
        return column
    try:
        return column.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:  # ids are their hexadecimal digits then
        return column


def is_list(kind: pa.DataType) -> bool:
    """Returns whether it is a plain type of lists."""
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def widen(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Returns the type that holds both, or None where there is none worth having."""
    if isinstance(left, pa.DictionaryType) and isinstance(right, pa.DictionaryType):
        values = widen(left.value_type, right.value_type)
        return None if values is None else pa.dictionary(left.index_type, values)
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right):
        return None  # two units or time zones: rather asked than guessed
    left, right = _beside_decimals(left, right), _beside_decimals(right, left)
    if pa.uint64() in (left, right) and any(map(pa.types.is_signed_integer, (left, right))):
        return ANY_INTEGER
    try:
        fields = [pa.schema([("x", left)]), pa.schema([("x", right)])]
        found = pa.unify_schemas(fields, promote_options="permissive").field("x").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    whole = is_list(found) and widen(left.value_type, right.value_type) == ANY_INTEGER
    if whole and found.value_type != ANY_INTEGER:
        return pa.large_list(ANY_INTEGER)
    return found


def _beside_decimals(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Integers as decimals that hold 64 bits of any sign: Arrow itself leaves a digit too few."""
    whole = pa.types.is_integer(kind) and pa.types.is_decimal(other)
    return ANY_INTEGER if whole else kind


def recoded(
    column: pa.ChunkedArray, kind: pa.DictionaryType, change: Callable[[pa.Array], pa.Array]
) -> pa.ChunkedArray:
    """Returns a dictionary-encoded column of another type, whose values `change` makes."""
    chunks = [
        pa.DictionaryArray.from_arrays(c.indices, change(c.dictionary), ordered=kind.ordered)
        for c in column.chunks
    ]
    return pa.chunked_array(chunks, kind)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array; one of a single chunk is not copied.

    Lists of several chunks become large ones, which have no limit of 2³¹ items.
    """
    if column.num_chunks == 1:
        return column.chunk(0)
    if is_list(column.type) and not pa.types.is_large_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def list_lengths(lists: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Returns how many items each list has, int64; 0 where it is null, as all are of type null.

    Example:
        >>> list_lengths(pa.array([[7, 8], None, []])).tolist()
        [2, 0, 0]
    """
    if pa.types.is_null(lists.type):
        return np.zeros(len(lists), np.int64)
    return pc.fill_null(pc.list_value_length(lists).cast(pa.int64()), 0).to_numpy()


def offsets_of(lengths_N: np.ndarray) -> np.ndarray:
    """Returns where the items of each list begin, and where the last end; int64 [N + 1]."""
    return np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64)


def _is_any_list(kind: pa.DataType) -> bool:
    views = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return is_list(kind) or views


def _plain_list(kind: pa.DataType) -> pa.DataType:
    """Lists of plain items stay as they are, those of usual text too: rebuilding costs time."""
    item = kind.value_type
    wanted = plain_type(item)  # once: two calls a level are 2^levels
    is_usual = pa.types.is_string(item) or wanted == item
    return kind if is_list(kind) and is_usual else pa.large_list(wanted)


def _plain(array: pa.Array) -> pa.Array:
    """Decodes one chunk, a layer of its type at a time."""
    kind = array.type
    wanted = plain_type(kind)
    if wanted == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(array.storage)
    if isinstance(kind, pa.DictionaryType):
        return _plain(array.dictionary).take(array.indices)
    if isinstance(kind, pa.RunEndEncodedType):
        return _decoded_runs(array)
    return _rebuilt_lists(array) if _is_any_list(kind) else array.cast(wanted)


def _decoded_runs(array: pa.RunEndEncodedArray) -> pa.Array:
    """Decodes runs by each row's run, since Arrow decodes runs of some types only."""
    numbers = pa.array(np.arange(len(array.values), dtype=np.int64))
    runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, numbers)
    rows = pc.run_end_decode(runs.slice(array.offset, len(array)))
    return _plain(array.values).take(rows)


def _rebuilt_lists(array: pa.Array) -> pa.Array:
    """Large lists of plain items."""
    offsets = pa.array(offsets_of(list_lengths(array)))
    return pa.LargeListArray.from_arrays(offsets, _plain(array.flatten()), mask=array.is_null())
