"""Numbers as people and spreadsheets write them: $1,234.00, 12.3%, 1.234,50 €, (5), and fillers."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mmoe.config import NumericFeature
from mmoe.datasets.rows.locations import ROW_COLUMN, find_column, place
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.columns import to_numbers
from mmoe.datasets.values.plain import is_text

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
        column = words_to_null(column, words)
        if feature.text_columns:
            column = _parsed(table, column, feature, origin)
    rows = {ROW_COLUMN: table[ROW_COLUMN]} if ROW_COLUMN in table.column_names else {}
    table = pa.table({name: column, **rows}, metadata=table.schema.metadata)
    numbers_N = to_numbers(table, name, origin, used_by)
    numbers = [number for value in feature.missing_values if (number := _number(value)) is not None]
    if not numbers:
        return numbers_N
    return np.where(np.isin(numbers_N, numbers), np.nan, numbers_N)


def words_to_null(column: pa.ChunkedArray, words: Sequence[str]) -> pa.ChunkedArray:
    """Makes these words null, with blanks around them or without."""
    if not words:
        return column
    trimmed = pc.utf8_trim_whitespace(column)
    wanted = pa.array([word.strip() for word in words], column.type)
    return pc.if_else(pc.is_in(trimmed, wanted), pa.scalar(None, column.type), column)


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
    tidy = tidied(values)
    parts = pc.extract_regex(tidy, pattern=_pattern(decimal, thousands, unit))
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
    numbers = pc.if_else(pc.is_inf(numbers), pa.scalar(None, pa.float64()), numbers)  # 1e400
    return pc.if_else(pa.array(minus_N == 1), pc.negate(numbers), numbers)


def _is(part: pa.ChunkedArray, mark: str) -> np.ndarray:
    return pc.fill_null(pc.equal(part, mark), False).to_numpy()


def tidied(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Trims text, and makes blanks, minus signs and apostrophes of all kinds the usual ones."""
    if not pc.all(pc.string_is_ascii(values), min_count=0).as_py():
        for pattern, usual in _ALIKE:
            values = pc.replace_substring_regex(values, pattern, usual)
    return pc.utf8_trim_whitespace(values)


def _pattern(decimal: str, thousands: str | None, unit: str | None) -> str:
    dot, mark = re.escape(decimal), re.escape(thousands or "")
    grouped = rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}})+|" if thousands else ""
    number = rf"(?:{grouped}\d+)(?:{dot}\d*)?|{dot}\d+"
    text_unit = re.escape(tidy_unit(unit)) if unit else ""
    around = f"(?:{text_unit})?" if unit else ""
    return (
        rf"^(?P<open>\(?)(?P<sign>[+-]?) ?(?P<before>{around}) ?(?P<inner>[+-]?)"
        rf"(?P<number>(?:{number})(?:[eE][+-]?\d+)?) ?(?P<behind>{around})(?P<last>-?)"
        rf"(?P<close>\)?)$"
    )


def tidy_unit(unit: str) -> str:
    """Returns the unit as `tidied` leaves it in cells."""
    [tidy] = tidied(pa.chunked_array([pa.array([unit], pa.large_string())])).to_pylist()
    return tidy


def _parsed(
    table: pa.Table, column: pa.ChunkedArray, feature: NumericFeature, origin: str
) -> pa.ChunkedArray:
    present = text.blank_to_null(pc.utf8_trim_whitespace(column))
    numbers = parse_written(present, feature.decimal, feature.thousands, feature.unit)
    wrong_N = pc.is_valid(present).to_numpy() & pc.is_null(numbers).to_numpy()
    if wrong_N.any():
        index = int(wrong_N.argmax())
        raise ValueError(
            f"{place(table, origin, index)}: column {feature.source_column!r} (of feature "
            f"{feature.name!r}) is {column[index].as_py()!r}, expected a number such as "
            f"{_example(feature)!r}, as the feature says; mend the cell, leave it empty, name it "
            "in missing_values, or change decimal, thousands or unit"
        )
    return numbers


def _example(feature: NumericFeature) -> str:
    number = f"1{feature.thousands or ''}234{feature.decimal}5"
    return number if feature.unit is None else f"{number} {feature.unit}"


def _number(value: int | float | str) -> float | None:
    """Also of a number in quotes."""
    try:
        return float(value)
    except ValueError:
        return None
