"""Rows of two tables with the same key, in the order of the first."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.values.arrow import is_text, pc


def join_by_key(
    left: pa.Table, right: pa.Table, key: Sequence[str], left_origin: str, right_origin: str
) -> pa.Table:
    """Returns the rows that are in both tables, each once, in the order of the first.

    Keys of different types are compared as numbers or times where both are such, or can be read as
    such, else as text; times without a zone are UTC. Rows without a key are in neither.

    Args:
        left: With the columns of `key`, and others.
        right: Likewise; no other column is in both.
        key: Names of the columns that tell rows apart.
        left_origin: What the user calls the first table.
        right_origin: Likewise.

    Raises:
        ValueError: A key stands twice in a table, or cannot be compared; names it.
    """
    columns: list[tuple[Any, Any]] = []
    for name in key:
        for table, origin in ((left, left_origin), (right, right_origin)):
            kind = table[name].type
            if pa.types.is_nested(kind) or pa.types.is_null(kind):
                what = "no value" if pa.types.is_null(kind) else str(kind)
                raise ValueError(f"{origin}: --key {name} holds {what}; name one of single values")
        columns.append(_alike(left[name], right[name]))
    keys = [pa.table({f"k{n}": pair[side] for n, pair in enumerate(columns)}) for side in (0, 1)]
    for keys_of, origin in zip(keys, (left_origin, right_origin), strict=True):
        _check_unique(keys_of, key, origin)
    on = keys[0].column_names
    places = (
        keys[0]
        .append_column("left", pa.array(range(left.num_rows), pa.int64()))
        .join(
            keys[1].append_column("right", pa.array(range(right.num_rows), pa.int64())),
            keys=on,
            join_type="inner",
        )
        .sort_by("left")
    )
    first, second = left.take(places["left"]), right.take(places["right"])
    found = {name: first[name] for name in visible_columns(left)}
    found |= {name: second[name] for name in right.column_names if name not in found}
    return pa.table(found)


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Both as one type."""
    if one.type == other.type:
        return one, other
    for kind in _kinds(one.type, other.type):
        with suppress(pa.ArrowException):
            return _cast(one, kind), _cast(other, kind)
    return one.cast(pa.large_string()), other.cast(pa.large_string())


def _kinds(one: pa.DataType, other: pa.DataType) -> list[pa.DataType]:
    """Types to compare in, the best first; what is text may have to be read."""
    kinds = [kind for kind in (one, other) if not is_text(kind)]
    if all(map(pa.types.is_temporal, kinds)) and kinds:
        return [pa.timestamp("us"), pa.timestamp("ns")]
    if all(map(_is_number, kinds)) and kinds:
        return [pa.int64(), pa.float64()]
    return []


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _cast(cells: Any, kind: pa.DataType) -> Any:
    if pa.types.is_floating(cells.type):
        cells = pc.if_else(pc.is_nan(cells), None, cells)
    return cells.cast(kind)


def _check_unique(keys: pa.Table, key: Sequence[str], origin: str) -> None:
    counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    for name in keys.column_names:  # rows without a key are joined with none
        twice = twice.filter(pc.is_valid(twice[name]))
    if twice.num_rows:
        one = twice.to_pylist()[0]
        shown = ", ".join(f"{name} {one[f'k{n}']!r}" for n, name in enumerate(key))
        raise ValueError(
            f"{origin}: {shown} is the key of {one['count_all']} rows, so that it is not known "
            "which label belongs to which; add a column to --key that tells them apart"
        )
