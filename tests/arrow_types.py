"""A column of every type that Arrow has, in any place where a config or a command can name one."""

import datetime as dt
import decimal
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.small_log import small_config, small_log

Column = Callable[[list], pa.Array]
_START = dt.datetime(2024, 1, 1)


def column_of(name: str, numbers: Sequence[int | None]) -> pa.Array:
    """A column of type `name` that holds these numbers as that type can say them; None is null."""
    return ARROW_TYPES[name](list(numbers))


def _of(kind: pa.DataType | None, value: Callable[[int], object] = int) -> Column:
    return lambda numbers: pa.array([None if n is None else value(n) for n in numbers], kind)


def _cast(through: pa.DataType, kind: pa.DataType) -> Column:
    return lambda numbers: pa.array(numbers, through).cast(kind)


def _moments(kind: pa.DataType) -> Column:
    moments = _of(pa.timestamp("us"), lambda n: _START + dt.timedelta(hours=7 * n))
    return lambda numbers: moments(numbers).cast(kind)


def _pair(kind: pa.DataType, item: Callable[[int], object] = int) -> Column:
    return _of(kind, lambda n: [item(n), item(n + 1)])


def _list_of(make: Column) -> Column:
    """Lists of one item whose type Python values do not say."""
    return lambda numbers: pa.ListArray.from_arrays(
        pa.array(np.arange(len(numbers) + 1, dtype=np.int32)), make(numbers)
    )


def _runs(make: Column) -> Column:
    return lambda numbers: pa.RunEndEncodedArray.from_arrays(
        pa.array(np.arange(1, len(numbers) + 1, dtype=np.int32)), make(numbers)
    )


def _extension(kind: pa.DataType, make: Column) -> Column:
    return lambda numbers: pa.ExtensionArray.from_storage(kind, make(numbers))


def _sparse_union(numbers: list) -> pa.Array:
    types = pa.array(np.arange(len(numbers)) % 2, pa.int8())
    return pa.UnionArray.from_sparse(types, [pa.array(numbers, pa.int64()), _texts(numbers)])


def _dense_union(numbers: list) -> pa.Array:
    types = pa.array(np.zeros(len(numbers)), pa.int8())
    indices = pa.array(np.arange(len(numbers)), pa.int32())
    return pa.UnionArray.from_dense(types, indices, [pa.array(numbers, pa.int64())])


def _word(n: int) -> str:
    return f"t{n}"


def _byte_word(n: int) -> bytes:
    return f"b{n}".encode()


_texts, _views = _of(pa.string(), _word), _of(pa.string_view(), _word)
_decimal = {"value": lambda n: decimal.Decimal(n) / 4}
_bytes = {"value": lambda n: b"b%02d" % n}
_intervals = _of(pa.month_day_nano_interval(), lambda n: pa.MonthDayNano([0, n, 0]))
_uuids = _extension(pa.uuid(), _of(pa.binary(16), lambda n: int(n).to_bytes(16, "big")))
_structs = _of(pa.struct([("a", pa.int64()), ("b", pa.string())]), lambda n: {"a": n, "b": f"{n}"})
ARROW_TYPES: dict[str, Column] = {
    "null": lambda numbers: pa.nulls(len(numbers)),
    "bool": _of(None, lambda n: n % 2 == 1),
    **{str(kind): _cast(kind, kind) for kind in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    )},
    "decimal32": _of(pa.decimal32(9, 2), **_decimal),
    "decimal64": _of(pa.decimal64(12, 2), **_decimal),
    "decimal128": _of(pa.decimal128(20, 2), **_decimal),
    "decimal256": _of(pa.decimal256(50, 2), **_decimal),
    "string": _texts,
    "large_string": _of(pa.large_string(), _word),
    "string_view": _views,
    "digits": _of(pa.string(), str),
    "digits_view": _of(pa.string_view(), str),
    "binary": _of(pa.binary(), **_bytes),
    "large_binary": _of(pa.large_binary(), **_bytes),
    "binary_view": _of(pa.binary_view(), **_bytes),
    "binary_digits": _of(pa.binary(), lambda n: b"%d" % n),
    "fixed_binary": _of(pa.binary(3), **_bytes),
    "date32": _moments(pa.date32()),
    "date64": lambda numbers: _moments(pa.date32())(numbers).cast(pa.date64()),
    "time32": _cast(pa.int32(), pa.time32("s")),
    "time64": _cast(pa.int64(), pa.time64("us")),
    "timestamp_s": _moments(pa.timestamp("s")),
    "timestamp_ns": _moments(pa.timestamp("ns")),
    "timestamp_utc": _moments(pa.timestamp("us", "UTC")),
    "timestamp_berlin": _moments(pa.timestamp("ms", "Europe/Berlin")),
    "duration_s": _cast(pa.int64(), pa.duration("s")),
    "duration_ns": _cast(pa.int64(), pa.duration("ns")),
    "interval": _intervals,
    "dictionary": lambda numbers: _texts(numbers).dictionary_encode(),
    "dictionary_int": lambda numbers: pa.array(numbers, pa.int64()).dictionary_encode(),
    "dictionary_view": lambda numbers: pa.DictionaryArray.from_arrays(
        pa.array(np.arange(len(numbers)), pa.int32()), _views(numbers)
    ),
    "runs_int": _runs(_of(pa.int64())),
    "runs_text": _runs(_texts),
    "runs_view": _runs(_views),
    "list": _pair(pa.list_(pa.int64())),
    "list_text": _pair(pa.list_(pa.string()), _word),
    "list_view_text": _pair(pa.list_view(pa.string()), _word),
    "list_of_views": _pair(pa.list_(pa.string_view()), _word),
    "list_of_binary_views": _pair(pa.list_(pa.binary_view()), _byte_word),
    "list_of_binary": _pair(pa.list_(pa.binary()), _byte_word),
    "large_list": _pair(pa.large_list(pa.int64())),
    "large_list_of_views": _pair(pa.large_list(pa.string_view()), _word),
    "list_view": _pair(pa.list_view(pa.int64())),
    "large_list_view": _pair(pa.large_list_view(pa.int64())),
    "fixed_list": _pair(pa.list_(pa.int64(), 2)),
    "fixed_list_of_views": _pair(pa.list_(pa.string_view(), 2), _word),
    "list_of_nulls": _of(pa.list_(pa.null()), lambda n: [None]),
    "list_of_halves": _pair(pa.list_(pa.float16()), np.float16),
    "list_of_decimals": _pair(pa.list_(pa.decimal128(9, 2)), decimal.Decimal),
    "list_of_dictionaries": _list_of(lambda n: _texts(n).dictionary_encode()),
    "list_of_runs": _list_of(_runs(_texts)),
    "list_of_uuids": _list_of(_uuids),
    "list_of_durations": _list_of(_cast(pa.int64(), pa.duration("s"))),
    "list_of_times": _list_of(_cast(pa.int32(), pa.time32("s"))),
    "list_of_intervals": _list_of(_intervals),
    "list_of_lists": _of(pa.list_(pa.list_(pa.int64())), lambda n: [[n]]),
    "list_of_structs": _list_of(_structs),
    "struct": _structs,
    "map": _of(pa.map_(pa.string(), pa.int64()), lambda n: [(f"k{n}", n)]),
    "sparse_union": _sparse_union,
    "dense_union": _dense_union,
    "uuid": _uuids,
    "bool8": _extension(pa.bool8(), _of(pa.int8(), lambda n: n % 2)),
    "opaque": _extension(pa.opaque(pa.int64(), "number", "somebody"), _of(pa.int64())),
    "json": _extension(pa.json_(), _texts),
    "tensor": _extension(
        pa.fixed_shape_tensor(pa.float32(), [2]),
        _of(pa.list_(pa.float32(), 2), lambda n: [float(n), 1.0]),
    ),
}  # fmt: skip

ODD, ROWS = "odd", 90  # the column
Role = Callable[[dict[str, Any]], None]


def _feature(**keys: Any) -> Role:
    return lambda raw: raw["features"].append({"name": ODD, **keys})


def _data(**keys: Any) -> Role:
    return lambda raw: raw["data"].update(keys)


def _task(**keys: Any) -> Role:
    return lambda raw: raw["tasks"].append({"name": "third", "label": "click", **keys})


def _split(by: str, **keys: Any) -> Role:
    return _data(split={"by": by, "column": ODD, **keys})


# What the config says of the column
ROLES: dict[str, Role] = {
    "vocabulary": _feature(kind="categorical"),
    "hashed": _feature(kind="categorical", encoding="hash", hash_size=16),
    "managed": _feature(kind="categorical", encoding="managed", rows=16),
    "list": _feature(kind="list", max_length=3),
    "list_cut": _feature(kind="list", weight_separator=":"),
    "weights_of_list": lambda raw: raw["features"][2].update(weights=ODD),
    "numeric": _feature(kind="numeric"),
    "buckets": _feature(kind="numeric", log=True, buckets=3),
    "cross": _feature(kind="cross", columns=[ODD, "item"]),
    "datetime": _feature(kind="datetime", parts=["hour", "weekday"]),
    "vector": _feature(kind="vector"),
    "projected": _feature(kind="vector", dim=3),
    "label": _task(label=ODD),
    "regression": _task(label=ODD, kind="regression"),
    "expression": _task(label=f"{ODD} >= 2"),
    "text_expression": _task(label=f"{ODD} == 't2'"),
    "observed_when": _task(observed_when=ODD),
    "weight_column": _task(weight_column=ODD),
    "group_column": _data(group_column=ODD),
    "split_by_time": _split("time"),
    "split_by_hash": _split("hash"),
    "split_by_day": _split("day", train_days=["2024-01-01"], test_days=["2024-01-02"]),
    "split_by_number": _split("day", train_days=["0", "1"], test_days=["2"]),
    "unread": lambda raw: None,
}


@dataclass(frozen=True)
class TypeCase:
    """A log with a column of a type in a role, to be read into memory or streamed."""

    draw: random.Random
    kind: str
    role: str
    folder: Path
    streams: bool = False

    def write_log(self) -> str:
        draw, spread = self.draw, self.draw.choice([2, 5, 40])
        gaps = draw.random() < 0.4
        numbers: list[int | None] = [
            None if gaps and draw.random() < 0.2 else draw.randrange(spread) for _ in range(ROWS)
        ]
        if draw.random() < 0.1:
            numbers = [None] * ROWS
        table = small_log(ROWS, seed=1).append_column(ODD, column_of(self.kind, numbers))
        self.folder.mkdir(parents=True, exist_ok=True)
        if draw.random() < 0.5:
            path = self.folder / "log.parquet"
            try:
                pq.write_table(table, path, row_group_size=40)
                return str(path)
            except pa.ArrowNotImplementedError:
                path.unlink(missing_ok=True)
        return write_arrow(table, self.folder / "log.arrow")

    def config(self, data: str) -> dict[str, Any]:
        raw = small_config(data)
        how = "stream" if self.streams else "memory"
        raw["data"] |= {"input": how, "streaming": {"chunk_rows": 30}}
        ROLES[self.role](raw)
        return raw


def write_arrow(table: pa.Table, path: Path, new: Callable[..., Any] = pa.ipc.new_file) -> str:
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    return str(path)
