"""One row in memory, by its cells: a table takes longer to make than a row's numbers."""

import sys
from collections.abc import Collection, Hashable, Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.frames import array_of, arrow_column

Cell = tuple[Hashable, Any]
"""What a column of one row is, and its value: equal cells are equal arrays of Arrow's."""

OneRow = Mapping[str, Any]
"""The columns of one row by name, each with one value: arrays or lists."""

_OF_PYTHON = (str, int, float, bool, type(None))


def one_row(data: Any, names: Set[str]) -> OneRow | None:
    """Returns some columns of the only row; None where there is another number, or a column less.

    Args:
        data: As for `as_table`.
        names: Of the columns.

    Example:
        >>> one_row({"age": [20], "city": ["Oslo"]}, {"age"})
        {'age': [20]}
        >>> one_row({"age": [20, 30]}, {"age"}) is None
        True
    """
    pandas = sys.modules.get("pandas")
    if isinstance(data, Mapping):
        lists = all(isinstance(name, str) and _is_one(data[name]) for name in data)
        return {name: data[name] for name in names} if lists and names <= data.keys() else None
    is_frame = pandas is not None and isinstance(data, pandas.DataFrame)
    if not (is_frame or isinstance(data, pa.Table)) or len(data) != 1:
        return None
    there = data.columns.tolist() if is_frame else data.schema.names
    places = {name: place for place, name in enumerate(there)}
    if len(places) < len(there) or not names <= places.keys():
        return None
    read = array_of if is_frame else pa.Table.column
    return {name: read(data, places[name]) for name in names}


def _is_one(values: Any) -> bool:
    return isinstance(values, list | np.ndarray | pa.Array | pa.ChunkedArray) and len(values) == 1


def cell_of(values: Any) -> Cell | None:
    """Returns the cell of a column of one row; None of one whose values are no plain ones.

    Example:
        >>> cell_of(pa.array([7])), cell_of(["a"])
        ((DataType(int64), 7), (<class 'str'>, 'a'))
    """
    if type(values) is np.ndarray:
        kind = values.dtype
        if values.shape == (1,) and kind.kind in "biuf" and kind.isnative:
            return kind, values.item()
        values = values.tolist() if kind.kind == "O" else []
    if isinstance(values, list):
        kind = type(values[0]) if values else None
        return (kind, values[0]) if kind in _OF_PYTHON else None
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        convert = getattr(values, "__arrow_array__", None)
        if convert is None:
            return None
        values = convert()
    kind = values.type
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        return None
    try:
        return kind, values[0].as_py()
    except (ValueError, OverflowError):  # a datetime that Python has not
        return None


def table_of(row: OneRow, names: Collection[str], origin: str) -> pa.Table:
    """Makes a table of some columns of a row.

    Raises:
        ValueError: A value is of no type that Arrow has.
    """
    columns = [
        row[name]
        if isinstance(row[name], pa.ChunkedArray)
        else arrow_column(name, row[name], origin)
        for name in names
    ]
    return pa.Table.from_arrays(columns, list(names))
