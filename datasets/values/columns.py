"""Columns as NumPy arrays: numbers, times or vectors; errors name file, row and value."""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mmoe.config import NumericFeature
from mmoe.datasets.rows.locations import (
    ROW_COLUMN,
    cast_column,
    cell_place,
    find_column,
    first_true,
    is_number,
    place,
)
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_list, is_numeric, is_text, list_lengths, pc
from mmoe.datasets.values.datetimes import digits_of, months_as_days, parse_format

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
    if is_text(column.type):  # what is neither a number nor a missing word is an error
        is_word = pc.is_valid(text.blank_to_null(column)).to_numpy() & np.isnan(numbers_N)
        if is_word.any():  # blanks alone, of any kind, are an empty cell
            trimmed = pc.utf8_trim_whitespace(column)
            is_word &= pc.is_valid(text.blank_to_null(trimmed)).to_numpy()
        if (row := first_true(is_word)) is not None:
            raise ValueError(
                f"{cell_place(table, origin, row, name, used_by)} is {column[row].as_py()!r}, "
                "expected a number; mend the cell, leave it empty, or make the feature categorical"
            )
    if (row := first_true(np.isinf(numbers_N))) is not None:
        raise ValueError(
            f"{cell_place(table, origin, row, name, used_by)} is "
            f"{numbers_N[row]}, expected a finite number; clip it, or leave the cell empty"
        )
    return numbers_N


def numbers_of(column: pa.ChunkedArray) -> np.ndarray | None:
    """Returns float64 [N], NaN where missing or unreadable; None: a type without numbers."""
    kind = column.type
    for is_kind, micros in (
        (pa.types.is_timestamp, pa.timestamp("us")),
        (pa.types.is_date, pa.timestamp("us")),
        (pa.types.is_time, pa.time64("us")),  # since midnight
        (pa.types.is_duration, pa.duration("us")),
    ):
        if is_kind(kind):
            return _as_float(column.cast(micros, safe=False).cast(pa.int64())) / _MICROSECONDS
    if is_text(kind):
        return _as_float(text.to_reals(column))
    if pa.types.is_boolean(kind):
        return _as_float(column.cast(pa.int8()))
    if is_numeric(kind) or pa.types.is_null(kind):
        return _as_float(column)
    return None


def _as_float(column: pa.ChunkedArray) -> np.ndarray:
    # safe=False: integers above 2⁵³ are rounded, which is what float64 means.
    floats = cast_column(column, pa.float64())
    if floats.null_count:
        floats = pc.fill_null(floats, float("nan"))
    return floats.to_numpy()


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
    # Unions count no nulls: they are refused below, by their type
    if column.null_count and (row := first_true(pc.is_null(column).to_numpy())) is not None:
        raise ValueError(
            f"{place(table, origin, row)}: column {name!r} is empty, but a split by time needs "
            "every row's time; drop such rows, or split by random"
        )
    if form is not None and not pa.types.is_temporal(column.type):
        micros = parse_format(pc.utf8_trim_whitespace(digits_of(column)), form)
        if (row := first_true(pc.is_null(micros).to_numpy())) is not None:
            raise ValueError(
                f"{cell_place(table, origin, row, name, used_by)} is {column[row].as_py()!r}, "
                f"which is no datetime of the format {form!r}; mend the cell, drop the row, or "
                "change data.split.format"
            )
        return micros.to_numpy()
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


def parse_datetimes(column: pa.ChunkedArray) -> np.ndarray | None:
    """Parses ISO 8601 (`2015-07` too) or whole numbers in text to int64 [N] microseconds (numbers).

    None where a row is neither, or they are not all written in one way.
    """
    readable = months_as_days(column.cast(pa.large_string()))
    for kind in _DATETIME_KINDS:
        try:
            return readable.cast(kind).cast(pa.int64()).to_numpy()
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


PERCENT = "%"
# One sign of each for the many that look alike
_ALIKE = (("[\\x{A0}\\x{2007}\\x{2009}\\x{202F}]", " "), ("[\\x{2212}\\x{2013}]", "-"),
          ("[\\x{2019}\\x{B4}`]", "'"))  # fmt: skip


def feature_numbers(table: pa.Table, feature: NumericFeature, origin: str) -> np.ndarray:
    """Reads a feature's column as its keys say, NaN where it is missing.

    Numbers that the file has as numbers are taken as they are; `missing_values` are missing in
    both.

    Args:
        table: N rows.
        feature: decimal, thousands, unit, missing_values.
        origin: Starts error messages.

    Returns:
        float64 [N], finite or NaN.

    Raises:
        ValueError: The column is not there, or a value is no number; names file, row and value.

    Example:
        >>> feature = NumericFeature(name="p", decimal=",", thousands=".", unit="€",
        ...                          missing_values=[-1, "?"])
        >>> table = pa.table({"p": ["1.234,50 €", "(€ 12)", "-1", "?"]})
        >>> feature_numbers(table, feature, "log.csv")
        array([1234.5,  -12. ,     nan,     nan])
    """
    used_by, name = f"feature {feature.name!r}", feature.source_column
    if not feature.text_columns and not feature.missing_values:
        return to_numbers(table, name, origin, used_by)
    column = find_column(table, name, origin, used_by)
    if is_text(column.type):
        words = [value for value in feature.missing_values if isinstance(value, str)]
        column = text.words_to_null(column, words)
        if feature.text_columns:
            column = _parsed(table, column, feature, origin)
    rows = {ROW_COLUMN: table[ROW_COLUMN]} if ROW_COLUMN in table.column_names else {}
    table = pa.table({name: column, **rows}, metadata=table.schema.metadata)
    numbers_N = to_numbers(table, name, origin, used_by)
    numbers = [float(value) for value in feature.missing_values if is_number(str(value))]
    return np.where(np.isin(numbers_N, numbers), np.nan, numbers_N) if numbers else numbers_N


def parse_written(
    values: pa.ChunkedArray, decimal: str, thousands: str | None, unit: str | None
) -> pa.ChunkedArray:
    """Parses numbers in text, float64; null where there is none written in this way.

    A sign may stand before the unit or behind it, or behind the number (5-); parentheses are a
    minus. Thousands come in groups of three, or are not parted at all.

    Args:
        values: large_string [N].
        decimal: Mark before the fraction.
        thousands: Mark between groups of three digits, or None.
        unit: What may stand before or behind; a percent sign has to.

    Example:
        >>> cells = pa.array(["-$1,234.5", "$7", "12-", "1,2", ""], pa.large_string())
        >>> parse_written(pa.chunked_array([cells]), ".", ",", "$").to_pylist()
        [-1234.5, 7.0, -12.0, None, None]
    """
    dot, mark = re.escape(decimal), re.escape(thousands or "")
    grouped = rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}})+|" if thousands else ""
    number = rf"(?:{grouped}\d+)(?:{dot}\d*)?|{dot}\d+"
    # As it is in cells that are tidied
    [tidy] = tidied(pa.chunked_array([[unit or ""]], pa.large_string())).to_pylist()
    around = f"(?:{re.escape(tidy)})?" if unit else ""
    pattern = (
        rf"^(?P<open>\(?)(?P<sign>[+-]?) ?(?P<before>{around}) ?(?P<inner>[+-]?)"
        rf"(?P<number>(?:{number})(?:[eE][+-]?\d+)?) ?(?P<behind>{around})(?P<last>-?)"
        rf"(?P<close>\)?)$"
    )
    parts = pc.extract_regex(tidied(values), pattern=pattern)
    field = {one.name: pc.struct_field(parts, one.name) for one in parts.type}
    signs = [("open", "("), ("sign", "-"), ("inner", "-"), ("last", "-")]
    minus_N = np.sum([_is(field[name], mark) for name, mark in signs], axis=0)
    good_N = pc.is_valid(parts).to_numpy() & (minus_N <= 1)
    good_N &= _is(field["open"], "(") == _is(field["close"], ")")
    if unit == PERCENT:
        good_N &= _is(field["before"], PERCENT) | _is(field["behind"], PERCENT)
    digits = pc.replace_substring(field["number"], thousands, "") if thousands else field["number"]
    digits = pc.replace_substring(digits, decimal, ".") if decimal != "." else digits
    digits = pc.if_else(pa.array(good_N), digits, pa.scalar(None, digits.type))
    numbers = digits.cast(pa.float64())
    numbers = pc.if_else(pc.is_inf(numbers), None, numbers)  # 1e400
    return pc.if_else(pa.array(minus_N == 1), pc.negate(numbers), numbers)


_THOUSANDS = {".": ",", ",": "."}  # the other mark
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


def parse_amounts(values: pa.ChunkedArray, decimal: str) -> pa.ChunkedArray:
    """Parses numbers with a currency or a percent sign, or k, M or B for their thousands.

    Args:
        values: large_string [N].
        decimal: Mark before the fraction, `.` or `,`; the other one may part thousands.

    Returns:
        float64 [N]; null where there is no such number.

    Example:
        >>> cells = pa.array(["$1,234.50", "1.2k", "12 %", "EUR -3", "(7)", "1,2", "", "x"])
        >>> parse_amounts(pa.chunked_array([cells.cast(pa.large_string())]), ".").to_pylist()
        [1234.5, 1200.0, 12.0, -3.0, -7.0, None, None, None]
    """
    bare = pc.replace_substring_regex(tidied(values), r" ?(\p{Sc}|%|\b[A-Z]{3}\b) ?", "")
    parts = pc.extract_regex(bare, r"^(?P<number>.*?)(?P<times>[kKmMbB]?)(?P<close>\)?)$")
    number, times, close = (pc.struct_field(parts, name) for name in ("number", "times", "close"))
    written = pc.binary_join_element_wise(number, close, pa.scalar("", number.type))
    letters = pa.array([*_TIMES], pa.large_string())
    factors = pa.array([*_TIMES.values()]).take(pc.index_in(pc.utf8_lower(times), letters))
    return pc.multiply(parse_written(written, decimal, _THOUSANDS[decimal], None), factors)


def _is(part: pa.ChunkedArray, mark: str) -> np.ndarray:
    return pc.fill_null(pc.equal(part, mark), False).to_numpy()


def tidied(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Trims text, and makes blanks, minus signs and apostrophes of all kinds the usual ones."""
    if not pc.all(pc.string_is_ascii(values), min_count=0).as_py():
        for pattern, usual in _ALIKE:
            values = pc.replace_substring_regex(values, pattern, usual)
    return pc.utf8_trim_whitespace(values)


def _parsed(
    table: pa.Table, column: pa.ChunkedArray, feature: NumericFeature, origin: str
) -> pa.ChunkedArray:
    present = text.blank_to_null(pc.utf8_trim_whitespace(column))
    numbers = parse_written(present, feature.decimal, feature.thousands, feature.unit)
    wrong_N = pc.is_valid(present).to_numpy() & pc.is_null(numbers).to_numpy()
    if (row := first_true(wrong_N)) is not None:
        example = f"1{feature.thousands or ''}234{feature.decimal}5"
        example += "" if feature.unit is None else f" {feature.unit}"
        used_by = f"feature {feature.name!r}"
        raise ValueError(
            f"{cell_place(table, origin, row, feature.source_column, used_by)} is "
            f"{column[row].as_py()!r}, expected a number such as {example!r}, as the feature "
            "says; mend the cell, leave it empty, name it in missing_values, or change decimal, "
            "thousands or unit"
        )
    return numbers


# Around the numbers of a vector in text: JSON, Python, NumPy, PostgreSQL
_BRACKETS = " \t\r\n[](){}"
_BETWEEN = r"[\s,;|]+"


class Vectors(NamedTuple):
    """Vectors of N rows, M of them present."""

    # float32 or float64, NaN where a number is missing; L is 0 where none is present
    numbers_ML: np.ndarray
    present_N: np.ndarray  # bool


def to_vectors(
    table: pa.Table, name: str, origin: str, used_by: str, length: int | None = None
) -> Vectors:
    """Reads a column of vectors: lists of numbers, or text that holds such lists.

    An empty list is a missing vector, and so is one without a number.

    Args:
        table: N rows.
        name: The column.
        origin: Starts error messages.
        used_by: Who asks, such as "feature 'title'".
        length: How long they have to be; None: as long as the first.

    Raises:
        ValueError: The column is not there or holds no lists of numbers, lengths differ, or a
            number is infinite; names file and row.

    Example:
        >>> table = pa.table({"title": ["[0.5, 2]", "", "[1.5, -1e-3]"]})
        >>> vectors = to_vectors(table, "title", "log.csv", "feature 'title'")
        >>> vectors.numbers_ML.tolist(), vectors.present_N.tolist()
        ([[0.5, 2.0], [1.5, -0.001]], [True, False, True])
    """
    column = find_column(table, name, origin, used_by)
    what = f"column {name!r} (of {used_by})"
    if pa.types.is_null(column.type):
        return Vectors(np.zeros((0, length or 0), np.float32), np.zeros(len(column), bool))
    kind = column.type
    if not is_text(kind) and (not is_list(kind) or pa.types.is_nested(kind.value_type)):
        raise ValueError(
            f"{origin}: {what} holds {kind}, expected lists of numbers, or text such as "
            "[0.1, 0.2]; give the feature another kind, or convert the column"
        )
    items, lengths_N = items_of(column)
    present_N = lengths_N > 0
    if not present_N.any():
        return Vectors(np.zeros((0, length or 0), np.float32), present_N)
    expected = length or int(lengths_N[present_N.argmax()])
    if (row := first_true(present_N & (lengths_N != expected))) is not None:
        raise ValueError(
            f"{place(table, origin, row)}: {what} holds {lengths_N[row]} numbers, expected "
            f"{expected} as in other rows; write all vectors with one length, or leave the cell "
            "empty"
        )
    numbers_V = reals_of(items)
    bad = _first_bad(items, numbers_V)
    if bad is not None:
        row = int(np.flatnonzero(present_N)[bad // expected])
        raise ValueError(
            f"{place(table, origin, row)}: {what} holds {items[bad].as_py()!r}, expected finite "
            "numbers; mend the cell, or leave it empty"
        )
    return _without_empty(numbers_V.reshape(-1, expected), present_N)


def items_of(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Returns all items of lists, or of text that holds them, and how many each row has.

    Example:
        >>> items, lengths_N = items_of(pa.chunked_array([["[1, 2]", None, "(3;4)"]]))
        >>> items.to_pylist(), lengths_N.tolist()
        (['1', '2', '3', '4'], [2, 0, 2])
    """
    lists = _split(column) if is_text(column.type) else column
    items = pc.list_flatten(lists)
    items = pc.utf8_trim_whitespace(items) if is_text(items.type) else items
    return items, list_lengths(lists)


def _split(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lists of text, null where there is none; brackets go, whatever is between numbers may be."""
    bare = pc.utf8_trim(text.blank_to_null(column), characters=_BRACKETS)
    bare = text.empty_to_null(bare)
    if not pc.all(pc.match_substring(bare, ","), min_count=0).as_py():
        bare = pc.replace_substring_regex(bare, _BETWEEN, ",")
    return pc.split_pattern(bare, ",")


def reals_of(items: pa.ChunkedArray) -> np.ndarray:
    """Returns items as floats [V], NaN where there is no number; float32 stays as narrow as it is.

    Example:
        >>> reals_of(pa.chunked_array([["0.5", "x"]])).tolist()
        [0.5, nan]
    """
    if items.type == pa.float32():
        return pc.fill_null(items, float("nan")).to_numpy()
    numbers_V = numbers_of(items)
    return np.full(len(items), np.nan) if numbers_V is None else numbers_V


def _first_bad(items: pa.ChunkedArray, numbers_V: np.ndarray) -> int | None:
    """The first that is infinite, or no number though it is there."""
    finite_V = np.isfinite(numbers_V)
    if finite_V.all():
        return None
    bad_V = np.isinf(numbers_V)
    if not pa.types.is_floating(items.type):
        there = text.blank_to_null(items) if is_text(items.type) else items
        bad_V |= np.isnan(numbers_V) & pc.is_valid(there).to_numpy()
    return int(bad_V.argmax()) if bad_V.any() else None


def _without_empty(numbers_ML: np.ndarray, present_N: np.ndarray) -> Vectors:
    """Vectors without a single number are missing."""
    if not np.isnan(numbers_ML).any():
        return Vectors(numbers_ML, present_N)
    empty_M = np.isnan(numbers_ML).all(axis=1)
    if not empty_M.any():
        return Vectors(numbers_ML, present_N)
    present_N = present_N.copy()
    present_N[np.flatnonzero(present_N)[empty_M]] = False
    return Vectors(numbers_ML[~empty_M], present_N)
