"""Rows in whatever form a caller has them, in one of those that `as_table` takes."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mmoe.datasets.values.arrow import plain

_SCALARS = (str, bytes, bool, int, float)


def is_row_dicts(rows: object) -> bool:
    """Returns whether this is a list of mappings, each a row by column names.

    Example:
        >>> is_row_dicts([{"age": 20}]), is_row_dicts({"age": [20]}), is_row_dicts([20])
        (True, False, False)
    """
    return isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows)


def plain_rows(rows: Any) -> Any:
    """Returns a list of row mappings as columns, and a batch or another library's frame as a table.

    What `as_table` takes already comes back as it is.

    Raises:
        ValueError: It is a mapping of names to values: one row.

    Example:
        >>> plain_rows([{"age": 20}, {"age": 31, "city": "Oslo"}])
        {'age': [20, 31], 'city': [None, 'Oslo']}
    """
    if is_row_dicts(rows):
        return _columns(rows)
    if isinstance(rows, Mapping) and any(isinstance(v, _SCALARS) for v in rows.values()):
        raise ValueError(
            "rows: expected a mapping of names to columns, got one of names to values; put a row "
            "into a list: [row]"
        )
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    exchanges = hasattr(rows, "__dataframe__") and not hasattr(rows, "__arrow_c_stream__")
    if exchanges and type(rows).__module__.partition(".")[0] != "pandas":
        from pyarrow.interchange import from_dataframe

        return from_dataframe(rows)
    return rows


def without_views(table: pa.Table) -> pa.Table:
    """Returns a table with texts and bytes for views of them, as polars gives: few read those.

    Example:
        >>> views = pa.table({"city": pa.array(["Oslo"], pa.string_view())})
        >>> without_views(views).schema.field("city").type
        DataType(large_string)
    """
    views = [n for n, kind in enumerate(table.schema.types) if "_view" in str(kind)]
    if not views:
        return table
    columns = list(table.columns)
    for place in views:
        columns[place] = _without_views(columns[place])
    # At once: a table that changes one column copies the list of all others
    return pa.table(columns, names=table.column_names, metadata=table.schema.metadata)


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not isinstance(column.type, pa.DictionaryType):
        return plain(column)
    chunks = [_plain_values(chunk) for chunk in column.chunks]  # a category: it stays one
    kind = pa.dictionary(column.type.index_type, pa.large_string(), column.type.ordered)
    return pa.chunked_array(chunks, kind)


def _plain_values(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    values = chunk.dictionary.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(chunk.indices, values, ordered=chunk.type.ordered)


def count_rows(rows: Any) -> int:
    """Returns how many rows there are, of what `plain_rows` gives."""
    if isinstance(rows, Mapping):
        return max((len(column) for column in rows.values()), default=0)
    return len(rows)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A key that a row lacks is missing there."""
    names = dict.fromkeys(str(name) for row in rows for name in row)
    named = [{str(name): value for name, value in row.items()} for row in rows]
    return {name: [row.get(name) for row in named] for name in names}
