"""Rows that the caller holds: a DataFrame, an Arrow table, columns by name."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mmoe.config import RequestsConfig
from mmoe.datasets.files.nested import flat_schema, unnested
from mmoe.datasets.rows.given_rows import without_views
from mmoe.datasets.rows.locations import ROW_COLUMN, number_rows
from mmoe.datasets.rows.mixed_values import texts_of_mixed
from mmoe.datasets.values.arrow import refuse_deep_types

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
        return _streamed(data)
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
    """Every column that is used, and of the others those that can be read."""
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


def _streamed(data: Any) -> pa.Table:
    try:
        return pa.table(data)
    except (pa.ArrowException, TypeError):  # one column, such as a Series
        raise _no_rows(data) from None


def _no_rows(data: Any) -> ValueError:
    what = " ".join(repr(data).split())
    what = what if len(what) <= 80 else f"{what[:77]}..."
    return ValueError(f"data: expected {_EXPECTED}, got {what}")
