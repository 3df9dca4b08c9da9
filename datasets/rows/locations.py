"""Columns and rows in messages, as the user knows them: by name, by file and row number."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from mmoe.datasets.values.arrow import decoded, plain, recoded

ROW_COLUMN = "__mmoe_row__"  # a row's number over all files, carried through the split
REQUEST_COLUMN = "__mmoe_request__"  # number of the request that a nested row came from
TIMES_COLUMN = "__mmoe_times__"  # how many rows one stands for, where values are counted
HIDDEN = (ROW_COLUMN, REQUEST_COLUMN, TIMES_COLUMN)
_FILES_KEY = b"mmoe.files"
_LONGEST_NAME = 80  # of a column, in an error message
# What parts cells, though no first line is looked through for it
_MARKS = re.compile(r"([:|~^#])\1+|[\x01-\x08^~¦]")


def number_rows(table: pa.Table, files: Sequence[tuple[str, int]], first: int = 0) -> pa.Table:
    """Adds the hidden column that lets an error message name the file and the row.

    Candidates of nested requests have such columns already; `files` then say how many requests,
    not candidates, each file has.

    Args:
        table: The rows of all `files`, in order.
        files: Path and number of rows of each.
        first: Number of the table's first row, where the table is a later chunk of one file.
    """
    metadata = {**(table.schema.metadata or {}), _FILES_KEY: json.dumps(list(files)).encode()}
    if REQUEST_COLUMN in table.schema.names:
        return table.replace_schema_metadata(metadata)
    numbers = pa.array(np.arange(first, first + table.num_rows, dtype=np.int64))
    return table.append_column(ROW_COLUMN, numbers).replace_schema_metadata(metadata)


def place(table: pa.Table, origin: str, index: int) -> str:
    """Names a row such as `log.csv: row 17`, counted from 1 without the header.

    A candidate of nested requests has the row of its request, and its place there:
    `log.parquet: row 17, candidate 3`.
    """
    index = int(index)
    if ROW_COLUMN not in table.column_names:
        return f"{origin}: row {index + 1}"
    number, candidate = table[ROW_COLUMN][index].as_py(), ""
    if REQUEST_COLUMN in table.column_names:
        number, candidate = table[REQUEST_COLUMN][index].as_py(), f", candidate {number + 1}"
    for path, num_rows in json.loads((table.schema.metadata or {}).get(_FILES_KEY, b"[]")):
        if number < num_rows:
            return f"{path}: row {number + 1}{candidate}"
        number -= num_rows
    return f"{origin}: row {number + 1}{candidate}"


def first_true(mask_N: np.ndarray) -> int | None:
    """Returns the index of the first true value, or None."""
    return int(mask_N.argmax()) if mask_N.any() else None


def cell_place(table: pa.Table, origin: str, row: int, column: str, used_by: str) -> str:
    """Names a cell: `log.csv: row 17: column 'age' (of feature 'age')`."""
    return f"{place(table, origin, row)}: column {column!r} (of {used_by})"


def rows_by_file(table: pa.Table, origin: str) -> list[tuple[str, slice]]:
    """Returns the files of a numbered table and the rows that each gave."""
    files = json.loads((table.schema.metadata or {}).get(_FILES_KEY, b"[]"))
    sizes = [num_rows for _, num_rows in files]
    if ROW_COLUMN not in table.column_names or sum(sizes) != table.num_rows:
        return [(origin, slice(0, table.num_rows))]
    stops = np.cumsum(sizes).tolist()
    return [
        (path, slice(stop - num_rows, stop))
        for (path, num_rows), stop in zip(files, stops, strict=True)
    ]


def visible_columns(table: pa.Table) -> list[str]:
    """Lists the user's columns, without the hidden numbers of rows and requests."""
    return [name for name in table.column_names if name not in HIDDEN]


def times_of(table: pa.Table) -> np.ndarray | None:
    """Returns how many rows each one stands for, int64; None: one each."""
    place = table.schema.get_field_index(TIMES_COLUMN)  # each column asks: no list of all of them
    return None if place < 0 else table.column(place).to_numpy()


def is_of_request(table: pa.Table, name: str) -> bool:
    """Returns whether rows are candidates of nested requests, which have this column once each."""
    schema = table.schema
    if min(map(schema.get_field_index, (REQUEST_COLUMN, name))) < 0:
        return False
    return isinstance(schema.field(name).type, pa.DictionaryType)


def find_column(table: pa.Table, name: str, origin: str, used_by: str) -> pa.ChunkedArray:
    """Returns the column `name`, with plain values where it was dictionary-encoded.

    Raises:
        ValueError: There is no such column, or more than one.
    """
    found = table.schema.get_all_field_indices(name)
    if len(found) == 1:
        return decoded(plain(table.column(found[0])))
    refuse_repeated([name], table.schema.names, origin)
    raise ValueError(missing_column(name, visible_columns(table), origin, used_by))


class MissingColumnError(ValueError):
    """Refusal of a file that lacks a column; `needed_by` adds what needs it."""

    def __init__(self, name: str, there: list[str], origin: str) -> None:
        super().__init__(missing_column(name, there, origin))
        self.name, self.there, self.origin = name, there, origin

    def needed_by(self, used_by: str) -> ValueError:
        """Adds to the message who needs the column, such as "feature 'age'"."""
        return ValueError(missing_column(self.name, self.there, self.origin, used_by))


def refuse_missing(asked: Iterable[str], there: list[str], origin: str) -> None:
    """Raises `MissingColumnError` of the first column asked for that is not there."""
    known = set(there)
    for name in asked:
        if name not in known:
            raise MissingColumnError(name, there, origin)


def missing_column(name: str, there: Iterable[str], origin: str, used_by: str = "") -> str:
    """Returns the error for a column that is not there: nearest name, and what there is."""
    names = list(there)
    lower = {known.lower(): known for known in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    hint = f" (did you mean {_shortened(lower[close[0]])!r}?)" if close else ""
    used = f", which {used_by} needs" if used_by else ""
    listed = ", ".join(map(_shortened, names[:60])) + (
        f", … ({len(names)} in all)" if len(names) > 60 else ""
    )
    message = f"{origin}: there is no column {name!r}{used}{hint}; the columns are: {listed}"
    if names and 2 * sum(map(is_number, names)) >= len(names):
        message += (
            "; they look like data, so the file may lack a header line: add one, or name the "
            "columns (data.column_names)"
        )
    return message + (delimiter_hint(names[0]) if len(names) == 1 else "")


def delimiter_hint(line: str) -> str:
    """Returns what to say of a line that nothing parted: which mark in it may, or "".

    Example:
        >>> delimiter_hint("1::1193::5::978300760"), delimiter_hint("user_id")
        ("; if '::' parts the cells, say so: --delimiter '::' (data.delimiter)", '')
    """
    marks = Counter(found[0] for found in _MARKS.finditer(line))
    if not marks:
        return ""
    mark = repr(max(marks, key=lambda one: marks[one]))
    return f"; if {mark} parts the cells, say so: --delimiter {mark} (data.delimiter)"


def check_columns(uses: Mapping[str, str], there: Sequence[str], origin: str) -> None:
    """Refuses rows that lack columns, and names all of these.

    Args:
        uses: The columns, each with what needs it.
        there: Those that the rows have.
        origin: What the user calls the rows; starts the message.

    Raises:
        ValueError: Some are not there.
    """
    known = set(there)
    missing = [name for name in uses if name not in known]
    if len(missing) == 1:
        raise ValueError(missing_column(missing[0], there, origin, uses[missing[0]]))
    if missing:
        listed = ", ".join(f"{name!r} ({uses[name]})" for name in missing)
        raise ValueError(
            f"{origin}: lacks {len(missing)} columns that are needed: {listed}; the columns are: "
            f"{', '.join(there)}"
        )


def refuse_repeated(asked: Iterable[str], there: Sequence[str], origin: str) -> None:
    """Refuses a name that several columns have, as nobody knows which of them is meant.

    Args:
        asked: Names of columns.
        there: Names as the rows have them.
        origin: What the user calls the rows; starts the message.

    Raises:
        ValueError: Several columns have one of the names.
    """
    if len(set(there)) == len(there):
        return
    counts = Counter(there)
    for name in asked:
        if counts[name] > 1:
            raise ValueError(
                f"{origin}: {counts[name]} columns are called {name!r}; rename all but one"
            )


def distinct_names(names: list[str]) -> list[str]:
    """Names unnamed columns, and numbers equal names: a, a.1, a.2 as in pandas."""
    taken: set[str] = set()
    last: dict[str, int] = {}  # numbers up to these are taken
    result = []
    for position, name in enumerate(names):
        base = name or f"unnamed_{position}"
        number = last.get(base, 0)
        candidate = f"{base}.{number}" if number else base
        while candidate in taken:
            number += 1
            candidate = f"{base}.{number}"
        last[base] = number
        taken.add(candidate)
        result.append(candidate)
    return result


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Casts a column to another type; digits are lost where it has no room for them.

    Decimals become the nearest float, as the same number in text does; Arrow's own cast makes
    0.35 the next one, 0.35000000000000003, which may fall into another bucket.

    Example:
        >>> prices = pa.chunked_array([pa.array(["0.35"]).cast(pa.decimal128(9, 2))])
        >>> cast_column(prices, pa.float64()).to_pylist()
        [0.35]
    """
    if isinstance(kind, pa.DictionaryType):
        of_values = kind.value_type
        return recoded(
            column, kind, lambda v: cast_column(pa.chunked_array([v]), of_values).combine_chunks()
        )
    if pa.types.is_decimal(column.type) and pa.types.is_floating(kind):
        column = column.cast(pa.string())
    return column.cast(kind, safe=False)


def _shortened(name: str) -> str:
    """Shortens a header: what is no file of columns may have one long line."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def is_number(text: str) -> bool:
    """Returns whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
