"""Rows of two tables with the same key, in the order of the first."""

from collections.abc import Sequence

import pyarrow as pa

from mmoe.datasets.rows.locations import ROW_COLUMN
from mmoe.datasets.values.arrow import pc

_LEFT, _RIGHT = "__left__", "__right__"


def join_by_key(
    left: pa.Table, right: pa.Table, key: Sequence[str], left_origin: str, right_origin: str
) -> pa.Table:
    """Returns the rows that are in both tables, each once, in the order of the first.

    Keys of different types are compared as text; rows without a key are in neither.

    Args:
        left: With the columns of `key`, and others.
        right: Likewise; no other column is in both.
        key: Names of the columns that tell rows apart.
        left_origin: What the user calls the first table.
        right_origin: Likewise.

    Raises:
        ValueError: A key stands twice in a table; names it.
    """
    for table, origin in ((left, left_origin), (right, right_origin)):
        _check_unique(table, key, origin)
    left_keys, right_keys = left.select(key), right.select(key)
    for place, name in enumerate(key):
        if left_keys[name].type != right_keys[name].type:
            left_keys = left_keys.set_column(place, name, left_keys[name].cast(pa.large_string()))
            right_keys = right_keys.set_column(
                place, name, right_keys[name].cast(pa.large_string())
            )
    places = (
        left_keys.append_column(_LEFT, pa.array(range(left.num_rows), pa.int64()))
        .join(
            right_keys.append_column(_RIGHT, pa.array(range(right.num_rows), pa.int64())),
            keys=list(key),
            join_type="inner",
        )
        .sort_by(_LEFT)
    )
    first, second = left.take(places[_LEFT]), right.take(places[_RIGHT])
    columns = {name: first[name] for name in left.column_names if name != ROW_COLUMN}
    columns |= {name: second[name] for name in right.column_names if name not in columns}
    return pa.table(columns)


def _check_unique(table: pa.Table, key: Sequence[str], origin: str) -> None:
    counted = table.select(key).group_by(list(key)).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    for name in key:  # rows without a key are joined with none
        twice = twice.filter(pc.is_valid(twice[name]))
    if twice.num_rows:
        one = twice.to_pylist()[0]
        shown = ", ".join(f"{name} {one[name]!r}" for name in key)
        raise ValueError(
            f"{origin}: {shown} is the key of {one['count_all']} rows, so that it is not known "
            "which label belongs to which; add a column to --key that tells them apart"
        )
