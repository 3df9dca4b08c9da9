"""Rows that the caller holds: a DataFrame, an Arrow table, columns by name, rows one by one."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mmoe.config import RequestsConfig
from mmoe.datasets.files.nested import flat_schema, unnested
from mmoe.datasets.rows.locations import ROW_COLUMN, number_rows
from mmoe.datasets.values.arrow import plain, recoded, refuse_deep_types

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import TypeIs

    TableLike = pa.Table | pd.DataFrame | Mapping[str, Any]
else:
    TableLike = Any  # no pandas where nobody has one

_EXPECTED = "a path, a DataFrame, an Arrow table or a mapping of names to columns"


def holds_rows(data: object) -> "TypeIs[TableLike]":
    """Returns whether `data` is rows in memory; else it is None, or says where files are.

    Example:
        >>> holds_rows({"age": [20]}), holds_rows(["a.csv", "b.csv"])
        (True, False)
    """
    if isinstance(data, list | tuple):  # of rows: `as_table` says what is expected instead
        return not all(isinstance(path, str | PathLike) for path in data)
    return not (data is None or isinstance(data, str | PathLike))


def as_table(
    data: TableLike,
    needed: Callable[[list[str]], Collection[str]] | None = None,
    *,
    origin: str | None = None,
    mixed: list[str] | None = None,
) -> pa.Table:
    """Makes an Arrow table of rows in memory, with the hidden column of row numbers.

    Args:
        data: A DataFrame (pandas; others by Arrow's C interface), a table, or arrays by name.
        needed: Given the names of all columns, returns those that are used: another one that
            cannot be read is left out. None: all are.
        origin: What error messages call the rows; None: their type.
        mixed: Columns of numbers and texts are read as text, and named here; None: refused.

    Raises:
        ValueError: It is none of these, a column cannot be read or is there twice, columns differ
            in length, or there is no row.

    Example:
        >>> as_table({"age": [20, 30]})["age"].to_pylist()
        [20, 30]
    """
    origin = origin or origin_of(data)
    table: pa.Table = data
    if not isinstance(data, pa.Table):
        table = _converted(data, origin, needed, mixed)
    if not table.num_rows:
        raise ValueError(f"{origin}: holds no rows; expected one at least")
    if not isinstance(data, Mapping):
        refuse_deep_types(table.schema, origin)
    table = without_views(table)
    if ROW_COLUMN in table.schema.names:
        return table  # of files: its rows are named after them
    return number_rows(table, [(origin, table.num_rows)])


def as_rows(
    data: TableLike,
    requests: RequestsConfig | None,
    needed: Callable[[list[str]], Collection[str]] | None = None,
    *,
    origin: str | None = None,
    mixed: list[str] | None = None,
    known: Collection[str] = (),
) -> pa.Table:
    """Makes an Arrow table likewise, with a row for each candidate where rows are requests.

    Rows without the column of candidates are candidates, each of a request of its own.

    Args:
        data: As for `as_table`, as the others.
        requests: Of the run; None: a row is a row.
        needed: Of the columns that rows then have.
        origin: What error messages call the rows.
        mixed: See `as_table`.
        known: Columns that rows have, whatever empty lists of candidates say of them.

    Raises:
        ValueError: As `as_table`; or candidates are no lists of structs.
    """
    candidates = None if requests is None else requests.candidates
    if candidates is None:
        return as_table(data, needed, origin=origin, mixed=mixed)
    asked = None if needed is None else lambda there: [*needed(there), candidates]
    table = as_table(data, asked, origin=origin, mixed=mixed)
    if candidates not in table.column_names:
        return table
    table = table.drop_columns([ROW_COLUMN])
    origin = origin or origin_of(data)
    names = flat_schema(table.schema, candidates, origin, known).names
    return unnested(table, candidates, names, origin)


def origin_of(data: TableLike) -> str:
    """Returns what error messages call rows in memory: DataFrame, Table, dict."""
    return type(data).__name__


def arrow_column(name: str, values: Any, origin: str = "") -> pa.Array:
    """Makes an Arrow column of a Series, an array or a list; NaN is missing.

    Raises:
        ValueError: Its values are of several types, or of one that Arrow has not.
    """
    if getattr(values, "ndim", 1) == 2 and not hasattr(values, "columns"):
        values = list(values)  # a vector in each row
    try:
        array = pa.Array.from_pandas(values)
        kind = array.type.value_type if isinstance(array.type, pa.DictionaryType) else array.type
        if isinstance(kind, pa.BaseExtensionType):  # intervals, periods
            raise TypeError(f"it holds {kind}")
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        what = getattr(values, "dtype", type(values).__name__)
        raise ValueError(
            f"{f'{origin}: ' if origin else ''}column {name!r} (dtype {what}) cannot be read, "
            f"{' '.join(str(error).split())}; make it one type, such as text or float"
        ) from None
    if kind.num_fields:
        refuse_deep_types(pa.schema([(str(name), kind)]), origin or "rows")
    return array


def _converted(
    data: Any,
    origin: str,
    needed: Callable[[list[str]], Collection[str]] | None,
    mixed: list[str] | None,
) -> pa.Table:
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        columns = [(str(name), array_of(data, n)) for n, name in enumerate(data.columns.tolist())]
    elif isinstance(data, Mapping):
        columns = [(str(name), values) for name, values in data.items()]
    elif hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.table(data)
        except (pa.ArrowException, TypeError):  # one column, such as a Series
            raise _no_rows(data) from None
    else:
        raise _no_rows(data)
    names = [name for name, _ in columns]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise ValueError(f"{origin}: two columns are called {name!r}; rename one of them")
    used = names if needed is None else needed(names)
    arrays = dict(_readable(columns, used, origin, mixed))
    first, rows = next(((name, len(array)) for name, array in arrays.items()), ("", 0))
    for name, array in arrays.items():
        if len(array) != rows:
            raise ValueError(
                f"{origin}: column {name!r} has {len(array)} rows, but {first!r} has {rows}; give "
                "all columns one length"
            )
    return pa.Table.from_arrays([*arrays.values()], [*arrays])


def array_of(data: Any, number: int) -> Any:
    """Returns a frame's column, without a Series around it where Arrow reads its array alike.

    A Series of one row takes 40 times as long to make and to read as its array.
    """
    array_of = getattr(data, "_get_column_array", None)
    values = None if array_of is None else array_of(number)
    if isinstance(values, np.ndarray) or hasattr(values, "__arrow_array__"):
        return values
    return data.iloc[:, number]


def _readable(
    columns: list[tuple[str, Any]], used: Collection[str], origin: str, mixed: list[str] | None
) -> Iterator[tuple[str, pa.Array]]:
    """Returns all columns that are used, and the others that can be read."""
    for name, values in columns:
        try:
            yield name, arrow_column(name, values, origin)
        except ValueError:
            texts = None if mixed is None or name not in used else texts_of_mixed(values)
            if texts is not None and mixed is not None:
                mixed.append(name)
                yield name, texts
            elif name in used:
                raise


def _no_rows(data: Any) -> ValueError:
    what = " ".join(repr(data).split())
    what = what if len(what) <= 80 else f"{what[:77]}..."
    return ValueError(f"data: expected {_EXPECTED}, got {what}")


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
    if is_row_dicts(rows):  # a key that a row lacks is missing there
        named = [{str(name): value for name, value in row.items()} for row in rows]
        names = dict.fromkeys(name for row in named for name in row)
        return {name: [row.get(name) for row in named] for name in names}
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
    for index in views:
        column = columns[index]
        if isinstance(column.type, pa.DictionaryType):  # a category: it stays one
            kind = pa.dictionary(column.type.index_type, pa.large_string(), column.type.ordered)
            columns[index] = recoded(column, kind, lambda v: v.cast(pa.large_string()))
        else:
            columns[index] = plain(column)
    # At once: a table that changes one column copies the list of all others
    return pa.table(columns, names=table.column_names, metadata=table.schema.metadata)


def count_rows(rows: Any) -> int:
    """Returns how many rows there are, of what `plain_rows` gives."""
    if isinstance(rows, Mapping):
        return max((len(column) for column in rows.values()), default=0)
    return len(rows)


_EXACT = 2.0**53  # whole floats below are written as integers, as ids of floats are


def texts_of_mixed(values: Any) -> pa.Array | None:
    """Returns numbers, flags and texts as texts; None where a value is no scalar, or none is text.

    A number is written as the id that it would be (5 and 5.0 are "5"), so that it is the same one
    where a later table has the column as numbers. None and NaN are missing.

    Example:
        >>> texts_of_mixed([5, "a", 5.0, None, True]).to_pylist()
        ['5', 'a', '5', None, 'True']
        >>> texts_of_mixed([1, [2]]) is None
        True
    """
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        return None
    texts: list[str | None] = []
    found = False
    for value in values:
        found = found or isinstance(value, str)
        text = _text(value)
        # None, NaN, pandas' NA and NaT have no text
        kind = type(value).__name__
        gone = value is None or isinstance(value, float | np.floating)
        if text is None and not gone and kind not in ("NAType", "NaTType"):
            return None
        texts.append(text)
    return pa.array(texts, pa.large_string()) if found else None


def describe_mixed(columns: Sequence[str]) -> str:
    """Returns the warning about columns that were read as text."""
    listed = ", ".join(map(repr, columns))
    return (
        f"numbers and texts stand side by side in {listed}, so all values of it are read as text; "
        "make it one type if they are numbers (pandas.to_numeric)"
    )


def _text(value: Any) -> str | None:
    if isinstance(value, str | bool | int | np.bool_ | np.integer):
        return str(value)
    if isinstance(value, float | np.floating | Decimal) and value == value:
        whole = abs(value) < _EXACT and value == int(value)
        return str(int(value)) if whole else str(value)
    return None
