"""One column of every type that Arrow has, out of the same small numbers."""

import datetime as dt
import decimal
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

_START = dt.datetime(2024, 1, 1)


def column_of(name: str, numbers: Sequence[int | None]) -> pa.Array:
    """A column of type `name` that holds these numbers as that type can say them; None is null."""
    return ARROW_TYPES[name](list(numbers))


def _as(kind: pa.DataType) -> Callable[[list], pa.Array]:
    return lambda numbers: pa.array(numbers, kind)


def _text(kind: pa.DataType) -> Callable[[list], pa.Array]:
    return lambda numbers: pa.array([None if n is None else f"t{n}" for n in numbers], kind)


def _digits(kind: pa.DataType) -> Callable[[list], pa.Array]:
    return lambda numbers: pa.array([None if n is None else f"{n}" for n in numbers], kind)


def _bytes(kind: pa.DataType, text: str = "b%02d") -> Callable[[list], pa.Array]:
    return lambda numbers: pa.array(
        [None if n is None else (text % n).encode() for n in numbers], kind
    )


def _moments(kind: pa.DataType) -> Callable[[list], pa.Array]:
    def make(numbers: list) -> pa.Array:
        moments = [None if n is None else _START + dt.timedelta(hours=7 * n) for n in numbers]
        return pa.array(moments, pa.timestamp("us")).cast(kind)

    return make


def _decimals(kind: pa.DataType) -> Callable[[list], pa.Array]:
    return lambda numbers: pa.array(
        [None if n is None else decimal.Decimal(n) / 4 for n in numbers], kind
    )


def _lists(kind: pa.DataType, item: Callable[[int], object] = int) -> Callable[[list], pa.Array]:
    return lambda numbers: pa.array(
        [None if n is None else [item(n), item(n + 1)] for n in numbers], kind
    )


def _list_of(make: Callable[[list], pa.Array]) -> Callable[[list], pa.Array]:
    """Lists of one item whose type Python values do not say."""

    def lists(numbers: list) -> pa.Array:
        offsets = pa.array(np.arange(len(numbers) + 1, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, make(numbers))

    return lists


def _runs(make: Callable[[list], pa.Array]) -> Callable[[list], pa.Array]:
    return lambda numbers: pa.RunEndEncodedArray.from_arrays(
        pa.array(np.arange(1, len(numbers) + 1, dtype=np.int32)), make(numbers)
    )


def _union(numbers: list) -> pa.Array:
    types = pa.array(np.arange(len(numbers)) % 2, pa.int8())
    return pa.UnionArray.from_sparse(types, [pa.array(numbers, pa.int64()), _texts(numbers)])


def _dense_union(numbers: list) -> pa.Array:
    types = pa.array(np.zeros(len(numbers)), pa.int8())
    places = pa.array(np.arange(len(numbers)), pa.int32())
    return pa.UnionArray.from_dense(types, places, [pa.array(numbers, pa.int64())])


def _texts(numbers: list) -> pa.Array:
    return _text(pa.string())(numbers)


def _uuids(numbers: list) -> pa.Array:
    plain = [None if n is None else int(n).to_bytes(16, "big") for n in numbers]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(plain, pa.binary(16)))


def _bool8(numbers: list) -> pa.Array:
    plain = [None if n is None else n % 2 for n in numbers]
    return pa.ExtensionArray.from_storage(pa.bool8(), pa.array(plain, pa.int8()))


def _opaque(numbers: list) -> pa.Array:
    kind = pa.opaque(pa.int64(), "number", "somebody")
    return pa.ExtensionArray.from_storage(kind, pa.array(numbers, pa.int64()))


def _tensors(numbers: list) -> pa.Array:
    rows = [None if n is None else [float(n), 1.0] for n in numbers]
    kind = pa.fixed_shape_tensor(pa.float32(), [2])
    return pa.ExtensionArray.from_storage(kind, pa.array(rows, pa.list_(pa.float32(), 2)))


def _intervals(numbers: list) -> pa.Array:
    rows = [None if n is None else pa.MonthDayNano([0, n, 0]) for n in numbers]
    return pa.array(rows, pa.month_day_nano_interval())


def _structs(numbers: list) -> pa.Array:
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    return pa.array([None if n is None else {"a": n, "b": f"{n}"} for n in numbers], kind)


def _maps(numbers: list) -> pa.Array:
    kind = pa.map_(pa.string(), pa.int64())
    return pa.array([None if n is None else [(f"k{n}", n)] for n in numbers], kind)


def _word(n: int) -> str:
    return f"t{n}"


ARROW_TYPES: dict[str, Callable[[list], pa.Array]] = {
    "null": lambda numbers: pa.nulls(len(numbers)),
    "bool": lambda numbers: pa.array([None if n is None else n % 2 == 1 for n in numbers]),
    **{
        str(kind): _as(kind)
        for kind in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
            pa.uint64(),
            pa.float16(),
            pa.float32(),
            pa.float64(),
        )
    },
    "decimal32": _decimals(pa.decimal32(9, 2)),
    "decimal64": _decimals(pa.decimal64(12, 2)),
    "decimal128": _decimals(pa.decimal128(20, 2)),
    "decimal256": _decimals(pa.decimal256(50, 2)),
    "string": _text(pa.string()),
    "large_string": _text(pa.large_string()),
    "string_view": _text(pa.string_view()),
    "digits": _digits(pa.string()),
    "digits_view": _digits(pa.string_view()),
    "binary": _bytes(pa.binary()),
    "large_binary": _bytes(pa.large_binary()),
    "binary_view": _bytes(pa.binary_view()),
    "binary_digits": _bytes(pa.binary(), "%d"),
    "fixed_binary": _bytes(pa.binary(3)),
    "date32": _moments(pa.date32()),
    "date64": lambda numbers: _moments(pa.date32())(numbers).cast(pa.date64()),
    "time32": lambda numbers: pa.array(numbers, pa.int32()).cast(pa.time32("s")),
    "time64": lambda numbers: pa.array(numbers, pa.int64()).cast(pa.time64("us")),
    "timestamp_s": _moments(pa.timestamp("s")),
    "timestamp_ns": _moments(pa.timestamp("ns")),
    "timestamp_utc": _moments(pa.timestamp("us", "UTC")),
    "timestamp_berlin": _moments(pa.timestamp("ms", "Europe/Berlin")),
    "duration_s": lambda numbers: pa.array(numbers, pa.int64()).cast(pa.duration("s")),
    "duration_ns": lambda numbers: pa.array(numbers, pa.int64()).cast(pa.duration("ns")),
    "interval": _intervals,
    "dictionary": lambda numbers: _texts(numbers).dictionary_encode(),
    "dictionary_int": lambda numbers: pa.array(numbers, pa.int64()).dictionary_encode(),
    "dictionary_view": lambda numbers: pa.DictionaryArray.from_arrays(
        pa.array(np.arange(len(numbers)), pa.int32()), _text(pa.string_view())(numbers)
    ),
    "runs_int": _runs(_as(pa.int64())),
    "runs_text": _runs(_text(pa.string())),
    "runs_view": _runs(_text(pa.string_view())),
    "list": _lists(pa.list_(pa.int64())),
    "list_text": _lists(pa.list_(pa.string()), _word),
    "list_view_text": _lists(pa.list_view(pa.string()), _word),
    "list_of_views": _lists(pa.list_(pa.string_view()), _word),
    "list_of_binary_views": _lists(pa.list_(pa.binary_view()), lambda n: f"b{n}".encode()),
    "list_of_binary": _lists(pa.list_(pa.binary()), lambda n: f"b{n}".encode()),
    "large_list": _lists(pa.large_list(pa.int64())),
    "large_list_of_views": _lists(pa.large_list(pa.string_view()), _word),
    "list_view": _lists(pa.list_view(pa.int64())),
    "large_list_view": _lists(pa.large_list_view(pa.int64())),
    "fixed_list": _lists(pa.list_(pa.int64(), 2)),
    "fixed_list_of_views": _lists(pa.list_(pa.string_view(), 2), _word),
    "list_of_nulls": lambda numbers: pa.array(
        [None if n is None else [None] for n in numbers], pa.list_(pa.null())
    ),
    "list_of_halves": _lists(pa.list_(pa.float16()), np.float16),
    "list_of_decimals": _lists(pa.list_(pa.decimal128(9, 2)), decimal.Decimal),
    "list_of_dictionaries": _list_of(lambda n: _texts(n).dictionary_encode()),
    "list_of_runs": _list_of(_runs(_text(pa.string()))),
    "list_of_uuids": _list_of(_uuids),
    "list_of_durations": _list_of(
        lambda numbers: pa.array(numbers, pa.int64()).cast(pa.duration("s"))
    ),
    "list_of_times": _list_of(lambda numbers: pa.array(numbers, pa.int32()).cast(pa.time32("s"))),
    "list_of_intervals": _list_of(_intervals),
    "list_of_lists": lambda numbers: pa.array(
        [None if n is None else [[n]] for n in numbers], pa.list_(pa.list_(pa.int64()))
    ),
    "list_of_structs": _list_of(_structs),
    "struct": _structs,
    "map": _maps,
    "sparse_union": _union,
    "dense_union": _dense_union,
    "uuid": _uuids,
    "bool8": _bool8,
    "opaque": _opaque,
    "json": lambda numbers: pa.ExtensionArray.from_storage(pa.json_(), _texts(numbers)),
    "tensor": _tensors,
}
