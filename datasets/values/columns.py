"""Columns as NumPy arrays of numbers or datetimes, with errors that name file, row and value."""

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.locations import cast_column, find_column, place
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.plain import is_list, is_text
from mmoe.datasets.values.written_datetimes import digits_of, parse_format

_MICROSECONDS = 1e6
# How text says a datetime; all rows in one way
_DATETIME_KINDS = (pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC"))


def to_numbers(table: pa.Table, name: str, origin: str, used_by: str) -> np.ndarray:
    """Reads a column as float64, NaN where it is missing.

    Integers, decimals, booleans (0 and 1) and numbers in text are taken; datetimes become seconds
    since 1970, durations and times of day seconds.

    Args:
        table: N rows.
        name: The column.
        origin: Starts error messages.
        used_by: Who asks, such as "feature 'age'".

    Returns:
        float64 [N], finite or NaN.

    Raises:
        ValueError: The column is not there, or a value is no number or infinite.

    Example:
        >>> to_numbers(pa.table({"age": ["31", "NA", "7.5"]}), "age", "log.csv", "feature 'age'")
        array([31. ,  nan,  7.5])
    """
    column = find_column(table, name, origin, used_by)
    numbers_N = numbers_of(column)
    if numbers_N is None:
        where = f"{origin}: column {name!r} (of {used_by})"
        vector = ", or make the feature kind: vector" if is_list(column.type) else ""
        raise ValueError(
            f"{where} holds {column.type}, expected numbers; convert the column{vector}"
        )
    if is_text(column.type):
        _refuse_words(table, column, numbers_N, name, origin, used_by)
    infinite_N = np.isinf(numbers_N)
    if infinite_N.any():
        index = int(infinite_N.argmax())
        raise ValueError(
            f"{place(table, origin, index)}: column {name!r} (of {used_by}) is "
            f"{numbers_N[index]}, expected a finite number; clip it, or leave the cell empty"
        )
    return numbers_N


def numbers_of(column: pa.ChunkedArray) -> np.ndarray | None:
    """Returns float64 [N], NaN where missing or unreadable; None: a type without numbers."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        micros = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return _as_float(micros) / _MICROSECONDS
    if pa.types.is_time(kind):  # seconds since midnight
        return _as_float(column.cast(pa.time64("us"), safe=False).cast(pa.int64())) / _MICROSECONDS
    if pa.types.is_duration(kind):
        micros = column.cast(pa.duration("us"), safe=False).cast(pa.int64())
        return _as_float(micros) / _MICROSECONDS
    if is_text(kind):
        return _as_float(text.to_reals(column))
    if pa.types.is_boolean(kind):
        return _as_float(column.cast(pa.int8()))
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if is_number or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return _as_float(column)
    return None


def _as_float(column: pa.ChunkedArray) -> np.ndarray:
    # safe=False: integers above 2⁵³ are rounded, which is what float64 means.
    floats = cast_column(column, pa.float64())
    if floats.null_count:
        floats = pc.fill_null(floats, float("nan"))
    return floats.to_numpy()


def _refuse_words(
    table: pa.Table,
    column: pa.ChunkedArray,
    numbers_N: np.ndarray,
    name: str,
    origin: str,
    used_by: str,
) -> None:
    """Text that is neither a number nor a missing word is an error, not a missing number."""
    is_word = pc.is_valid(text.blank_to_null(column)).to_numpy() & np.isnan(numbers_N)
    if is_word.any():  # blanks alone, of any kind, are an empty cell
        trimmed = pc.utf8_trim_whitespace(column)
        is_word &= pc.is_valid(text.blank_to_null(trimmed)).to_numpy()
    if is_word.any():
        index = int(is_word.argmax())
        raise ValueError(
            f"{place(table, origin, index)}: column {name!r} (of {used_by}) is "
            f"{column[index].as_py()!r}, expected a number; mend the cell, leave it empty, or make "
            "the feature categorical"
        )


def to_times(table: pa.Table, name: str, origin: str, form: str | None = None) -> np.ndarray:
    """Reads a column of datetimes as an array that sorts by time: integers, floats, dates, text.

    Args:
        table: N rows.
        name: The column.
        origin: Starts error messages.
        form: How text and numbers say them, in strptime's directives; None: ISO 8601, or numbers.

    Returns:
        int64 or float64 [N] (microseconds since 1970 for dates and text).

    Raises:
        ValueError: The column is missing, is no time, or has an empty cell.
    """
    used_by = "data.split.column"
    column = find_column(table, name, origin, used_by)
    if is_list(column.type) or pa.types.is_boolean(column.type):
        raise ValueError(f"{origin}: column {name!r} holds {column.type}, which is no time")
    if column.null_count:
        index = int(pc.is_null(column).to_numpy().argmax())
        raise ValueError(
            f"{place(table, origin, index)}: column {name!r} is empty, but a split by time needs "
            "every row's time; drop such rows, or split by random"
        )
    if form is not None and not pa.types.is_temporal(column.type):
        return _written_times(table, name, column, origin, form)
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy()
    where, bad = origin, column[0].as_py() if len(column) else None
    if is_text(column.type):
        datetimes = parse_datetimes(column)
        if datetimes is not None:
            return datetimes
        index = _first_without_datetime(column)
        where, bad = place(table, origin, index), column[index].as_py()
    elif pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        times_N = to_numbers(table, name, origin, used_by)
        if not np.isnan(times_N).any():
            return times_N
        bad = float("nan")
    raise ValueError(
        f"{where}: column {name!r} (of {used_by}) cannot be ordered in time (such as {bad!r}); "
        "write ISO 8601 (2024-01-31T12:00:00), seconds or milliseconds, say data.split.format, or "
        "split by random"
    )


def _written_times(
    table: pa.Table, name: str, column: pa.ChunkedArray, origin: str, form: str
) -> np.ndarray:
    cells = pc.utf8_trim_whitespace(digits_of(column))
    micros = parse_format(cells, form)
    if micros.null_count:
        index = int(pc.is_null(micros).to_numpy().argmax())
        raise ValueError(
            f"{place(table, origin, index)}: column {name!r} (of data.split.column) is "
            f"{column[index].as_py()!r}, which is no datetime of the format {form!r}; mend the "
            "cell, drop the row, or change data.split.format"
        )
    return micros.to_numpy()


def parse_datetimes(column: pa.ChunkedArray) -> np.ndarray | None:
    """Parses ISO 8601 or whole numbers in text to int64 [N] microseconds (numbers), or None."""
    for kind in _DATETIME_KINDS:
        try:
            return column.cast(kind).cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            continue
    return None


def _first_without_datetime(column: pa.ChunkedArray) -> int:
    """The first value that is not written as those before it, where `parse_datetimes` has none."""
    good, bad = 0, len(column)  # so many are read, so many are not
    while bad - good > 1:
        middle = (good + bad) // 2
        if parse_datetimes(column.slice(0, middle)) is None:
            bad = middle
        else:
            good = middle
    return good
