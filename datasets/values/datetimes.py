"""Datetimes of a time zone, from columns of any kind: their units, zones and formats."""

import re
from datetime import UTC, datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa

from mmoe.config import DatetimeFeature, Part, TimeUnit
from mmoe.datasets.rows.locations import cell_place, find_column, first_true
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_numeric, is_text, pc


def parse_format(values: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """Parses text as `form` says, int64 microseconds since 1970 in UTC; null where it does not.

    Strictly: a 31st of February, a further word or a missing hour is no datetime. What says no zone
    is UTC.

    Args:
        values: large_string [N].
        form: Directives of strptime, such as %d.%m.%Y.

    Example:
        >>> cells = pa.chunked_array([pa.array(["2.1.1970", "31.2.1970", None], "large_string")])
        >>> parse_format(cells, "%d.%m.%Y").to_pylist()
        [86400000000, None, None]
    """
    coded = values.combine_chunks().dictionary_encode()  # each text once: days come back
    texts = pd.Series(coded.dictionary.to_pylist(), dtype=object)
    found = pd.to_datetime(texts, format=form, errors="coerce", utc=True).dt.as_unit("us")
    micros = pa.array(found.to_numpy("M8[us]").astype(np.int64), mask=found.isna().to_numpy())
    return pa.chunked_array([micros.take(coded.indices)])


def digits_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns text as it is, and whole numbers such as 20231124 as text; null where missing."""
    if is_text(column.type):
        return column
    if not pa.types.is_integer(column.type):  # whole numbers with gaps, as pandas has them
        column = column.cast(pa.float64(), safe=False)
        whole = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), 2.0**53))
        column = pc.if_else(whole, column, None).cast(pa.int64())
    return column.cast(pa.large_string())


def has_hours(form: str) -> bool:
    """Returns whether a format says a time of day, not a day alone."""
    return any(directive in form for directive in ("%H", "%I"))


DAY_LENGTH, _MONTH_LENGTH = len("2024-01-31"), len("2024-01")
_ZONE = r"[ T]\d\d.*?\s?(Z|[+-]\d\d(:?\d\d)?)$"
_LONGEST_PLAIN = len("2024-01-31T12:00:00")


def present_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Trims text; missing words, and pandas's NaT, become null."""
    trimmed = text.blank_to_null(pc.utf8_trim_whitespace(column))
    return pc.if_else(pc.equal(trimmed, "NaT"), pa.scalar(None, trimmed.type), trimmed)


def months_as_days(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Writes months of 1990 to 2099 as their first days, since Arrow reads no months.

    Other text stays, codes such as 3012-04 too.

    Example:
        >>> months_as_days(pa.chunked_array([["2015-07", "2015-07-02", "noon"]])).to_pylist()
        ['2015-07-01', '2015-07-02', 'noon']
    """
    lengths = pc.equal(pc.binary_length(values), _MONTH_LENGTH)
    if not pc.any(lengths, min_count=0).as_py():
        return values
    return pc.replace_substring_regex(values, r"^((199|20\d)\d-(0[1-9]|1[0-2]))$", r"\1-01")


def parse_iso(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses datetimes in text to int64 microseconds since 1970, UTC; null where it is none.

    Day alone, or with hours, minutes, seconds and fractions (beyond microseconds cut off); `T` or a
    blank before the time, `Z` or an offset behind it. Without an offset it is UTC.

    Example:
        >>> parse_iso(pa.chunked_array([["1970-01-02", "1970-01-01 01:00+01", "noon"]])).to_pylist()
        [86400000000, 0, None]
    """
    if (pc.max(pc.binary_length(values)).as_py() or 0) > _LONGEST_PLAIN:
        values = pc.replace_substring_regex(values, r"(:\d\d)[.,](\d{1,6})\d*", r"\1.\2")
    zoned = pc.match_substring_regex(values, _ZONE)
    none = pa.scalar(None, values.type)
    plain = _cast(pc.if_else(zoned, none, values), pa.timestamp("us"))
    if not pc.any(zoned, min_count=0).as_py():
        return plain
    tight = pc.replace_substring_regex(values, r"\s+(Z|[+-]\d\d(:?\d\d)?)$", r"\1")
    return pc.coalesce(plain, _cast(pc.if_else(zoned, tight, none), pa.timestamp("us", "UTC")))


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """int64, null where a cell cannot be read."""
    return text.cast_each(values, kind).cast(pa.int64())


# What is outside has the offset of the first or last second of these years
_FIRST, _BEYOND = (int(np.datetime64(year, "us").astype(np.int64)) for year in ("0002", "9999"))


def local_micros(micros_N: np.ndarray, zone: str) -> np.ndarray:
    """Converts UTC microseconds to local ones.

    By pandas and `ZoneInfo`: Arrow's own conversion knows summer time up to the last change that a
    file of the time zone lists, 2037 or much earlier, and not the rule that goes on from there.

    Args:
        micros_N: int64, microseconds since 1970.
        zone: Name in the IANA database.

    Returns:
        int64 [N], microseconds.

    Example:
        >>> summers = np.array(["2024-07-01T12:00", "2050-07-01T12:00"], "M8[us]").astype(np.int64)
        >>> ((local_micros(summers, "Europe/Berlin") - summers) // 3_600_000_000).tolist()
        [2, 2]
    """
    inside_N = np.clip(micros_N, _FIRST, _BEYOND - 1)
    datetimes = pd.DatetimeIndex(inside_N.view("M8[us]"), tz="UTC")
    local_N = datetimes.tz_convert(ZoneInfo(zone)).tz_localize(None).as_unit("us").asi8
    return micros_N + (local_N - inside_N)


# Microseconds are `number * first // second`
_SCALES: dict[TimeUnit, tuple[int, int]] = {
    "s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)
}  # fmt: skip
# First and last year. Numbers outside have another unit than was said, most likely
_NUMBERS, _DATETIMES = (1900, 2199), (1, 9999)
_USUAL = (2000, 2099)  # a number that is in these years in a coarser unit is in that unit
_WITHIN_A_DAY: tuple[Part, ...] = ("minute", "hour", "hour_of_week")
_PLAIN_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]([01]\d|2[0-3]):[0-5]\d:[0-5]\d)?", re.ASCII)
_EXPECTED = "timestamps, dates, ISO 8601 text, or numbers with a unit"


def local_datetimes(
    table: pa.Table, feature: DatetimeFeature, origin: str, used_by: str | None = None
) -> pa.ChunkedArray:
    """Reads datetimes as the feature's time zone shows them; null where missing.

    Timestamps of any unit, dates, ISO 8601 text, and numbers since 1970 in the feature's `unit`. A
    datetime without a zone is UTC. A date, also one in text, is that day whatever the zone.

    Args:
        table: N rows.
        feature: Column, unit, time zone and parts.
        origin: Starts error messages.
        used_by: What reads the column, where it is no feature, for error messages.

    Returns:
        timestamp[us] [N], without a zone.

    Raises:
        ValueError: The column is not there or holds no datetimes, its numbers have no unit or seem
            to have another one, or a date is asked for its hour.

    Example:
        >>> feature = DatetimeFeature(name="at", parts=["hour"], timezone="Asia/Tokyo")
        >>> table = pa.table({"at": ["2024-01-31T12:00:00Z", "2024-01-31 23:30", ""]})
        >>> [str(at) for at in local_datetimes(table, feature, "log.csv")]
        ['2024-01-31 21:00:00', '2024-02-01 08:30:00', 'None']
    """
    column = find_column(
        table, feature.source_column, origin, used_by or f"feature {feature.name!r}"
    )
    kind = column.type
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), pa.timestamp("us"))])
    reader = _Reader(table, feature, origin, used_by)
    if pa.types.is_date(kind):
        reader.refuse_unit(str(kind))
        reader.refuse_hours(f"holds {kind}, which has no time of day")
        # Not shifted: a date is that day in every zone
        days = column.cast(pa.date64()).cast(pa.int64())
        return _whole(days, "ms", reader, _DATETIMES).cast(pa.timestamp("us"))
    if pa.types.is_timestamp(kind):
        reader.refuse_unit(str(kind))
        return reader.local(_whole(column.cast(pa.int64()), kind.unit, reader, _DATETIMES))
    if feature.format is not None and (is_numeric(kind) or is_text(kind)):
        return reader.written(column, feature.format)
    if is_text(kind):
        return reader.numbers_in_text(column) if feature.unit else reader.iso(column)
    if is_numeric(kind):
        return reader.local(reader.numbers(column))
    raise ValueError(f"{reader.where} holds {kind}, expected {_EXPECTED}; convert the column")


def plain_moment(value: object, feature: DatetimeFeature) -> pa.Array | None:
    """Parses text that is a plain day or moment (no zone, no fraction), faster than rules do.

    None where a feature reads text in a way of its own, or it is something else.

    Example:
        >>> feature = DatetimeFeature(name="at", parts=["month"])
        >>> [str(plain_moment(at, feature)[0]) for at in ("2024-01-31", "2024-01-31 12:00:05")]
        ['2024-01-31', '2024-01-31 12:00:05']
    """
    own = feature.unit is not None or feature.format is not None or feature.missing_values
    if own or not isinstance(value, str) or not _PLAIN_MOMENT.fullmatch(value):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:  # a day that there is not
        return None
    return pa.array([moment.date() if len(value) == DAY_LENGTH else moment])


class _Reader:
    """One column of one table; knows how to say what is wrong with it."""

    def __init__(
        self, table: pa.Table, feature: DatetimeFeature, origin: str, used_by: str | None
    ) -> None:
        self.table, self.feature, self.origin = table, feature, origin
        self.used_by = used_by or f"feature {feature.name!r}"
        self.named = used_by or "the feature"
        self.where = f"{origin}: column {feature.source_column!r} (of {self.used_by})"

    def row(self, index: int) -> str:
        """Returns the beginning of an error about one cell."""
        column = self.feature.source_column
        return cell_place(self.table, self.origin, index, column, self.used_by)

    def refuse_unit(self, kind: str) -> None:
        """The column says its unit itself; another one would be believed in vain."""
        if self.feature.unit is not None:
            raise ValueError(
                f"{self.where} holds {kind}, which says its unit itself, but {self.named} has "
                f"unit: {self.feature.unit}; remove unit"
            )

    def refuse_hours(self, complaint: str, index: int | None = None) -> None:
        """A day has no hour."""
        for part in self.feature.parts:
            if part in _WITHIN_A_DAY:
                where = self.where if index is None else self.row(index)
                raise ValueError(
                    f"{where} {complaint}, but parts has {part}; remove it from parts, or give "
                    "moments such as 2024-01-31T12:00:00"
                )

    def local(self, micros: pa.ChunkedArray) -> pa.ChunkedArray:
        """UTC → what the clock of the time zone shows."""
        if self.feature.timezone == "UTC":
            return micros.cast(pa.timestamp("us"))
        missing_N = pc.is_null(micros).to_numpy()
        micros_N = pc.fill_null(micros, 0).to_numpy()
        local_N = local_micros(micros_N, self.feature.timezone)
        return pa.chunked_array([pa.array(local_N, pa.timestamp("us"), mask=missing_N)])

    def numbers(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Numbers since 1970 → int64 microseconds."""
        unit = self.feature.unit
        if unit is None:
            raise ValueError(
                f"{self.where} holds {column.type}, but {self.named} has no unit; say what the "
                "numbers count since 1970: unit: s, ms, us or ns"
            )
        if pa.types.is_integer(column.type):
            if column.type == pa.uint64():  # beyond int64 is beyond any year
                most = pa.scalar(2**63 - 1, pa.uint64())
                column = pc.min_element_wise(column, most, skip_nulls=False)
            column = column.cast(pa.int64())
            self.refuse_coarser(pc.fill_null(column, 0).to_numpy(), unit)
            return _whole(column, unit, self, _NUMBERS)
        reals_N = pc.fill_null(column.cast(pa.float64(), safe=False), float("nan")).to_numpy()
        factor, divisor = _SCALES[unit]
        with np.errstate(over="ignore"):  # infinite is refused as well
            micros_N = reals_N * factor / divisor
        low, high = _micros(_NUMBERS)
        self.refuse_years((micros_N < low) | (micros_N >= high), reals_N, _NUMBERS)
        self.refuse_coarser(reals_N, unit)
        missing_N = np.isnan(micros_N)
        whole_N = np.floor(np.where(missing_N, 0.0, micros_N)).astype(np.int64)
        return pa.chunked_array([pa.array(whole_N, mask=missing_N)])

    def numbers_in_text(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Reads each cell as the number that it is: whole ones keep all their digits."""
        present = text.blank_to_null(text.words_to_null(column, self.feature.missing_values))
        whole = text.to_integers(present)
        reals = text.to_reals(present)
        wrong_N = (pc.is_valid(present).to_numpy()) & pc.is_null(reals).to_numpy()
        if (index := first_true(wrong_N)) is not None:
            raise ValueError(
                f"{self.row(index)} is {column[index].as_py()!r}, expected a number, as "
                f"{self.named} has unit: {self.feature.unit}; mend the cell, leave it empty, or "
                "remove unit where the column is ISO 8601 text"
            )
        micros = self.numbers(pc.if_else(pc.is_valid(whole), None, reals))
        return self.local(pc.coalesce(self.numbers(whole), micros))

    def written(self, column: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
        """Text of the feature's format; what is none is named with its row."""
        cells = digits_of(column)
        present = self.present(cells)
        micros = parse_format(present, form)
        wrong_N = pc.is_valid(present).to_numpy() & pc.is_null(micros).to_numpy()
        wrong_N |= pc.is_valid(column).to_numpy() & pc.is_null(cells).to_numpy()
        if (index := first_true(wrong_N)) is not None:
            example = datetime(2024, 1, 31, 12, tzinfo=UTC).strftime(form)
            raise ValueError(
                f"{self.row(index)} is {column[index].as_py()!r}, expected a datetime such as "
                f"{example!r} (format {form!r}); mend the cell, leave it empty, name it in "
                "missing_values, or change format"
            )
        if not has_hours(form):
            self.refuse_hours(f"has the format {form!r}, which has no time of day")
            return micros.cast(pa.timestamp("us"))
        return self.local(micros)

    def present(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Trimmed text; null where it is missing, or a word that says so."""
        return present_text(text.words_to_null(column, self.feature.missing_values))

    def iso(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Text; what is no datetime is named with its row."""
        present = months_as_days(self.present(column))
        micros = parse_iso(present)
        wrong_N = pc.is_valid(present).to_numpy() & pc.is_null(micros).to_numpy()
        if (index := first_true(wrong_N)) is not None:
            raise ValueError(
                f"{self.row(index)} is {column[index].as_py()!r}, expected ISO 8601 such as "
                "2024-01-31T12:00:00; mend the cell, leave it empty, or say unit: s, ms, us or ns "
                "where the text is numbers"
            )
        is_day = pc.fill_null(pc.equal(pc.utf8_length(present), DAY_LENGTH), False)
        days_N = is_day.to_numpy()
        if (index := first_true(days_N)) is not None:
            complaint = f"is {column[index].as_py()!r}, which has no time of day"
            self.refuse_hours(complaint, index)
        local = self.local(micros)
        return pc.if_else(is_day, micros.cast(pa.timestamp("us")), local)

    def refuse_years(
        self, outside_N: np.ndarray, numbers_N: np.ndarray, years: tuple[int, int]
    ) -> None:
        """A datetime far away is a number in another unit, or filler."""
        if (index := first_true(outside_N)) is not None:
            unit = f" {self.feature.unit}" if self.feature.unit else ""
            mend = "say the unit that all numbers of the column have, or " if unit else ""
            raise ValueError(
                f"{self.row(index)} is {numbers_N[index]}{unit} since 1970, which is not in the "
                f"years {years[0]} to {years[1]}; {mend}leave the cell empty"
            )

    def refuse_coarser(self, numbers_N: np.ndarray, unit: TimeUnit) -> None:
        """Seconds read as milliseconds would all be in January 1970."""
        for other in takewhile(lambda name: name != unit, _SCALES):
            factor, divisor = _SCALES[other]
            low, high = (limit * divisor // factor for limit in _micros(_USUAL))
            if (index := first_true((numbers_N >= low) & (numbers_N < high))) is not None:
                raise ValueError(
                    f"{self.row(index)} is {numbers_N[index]}, which in {unit} is in the first "
                    f"weeks of 1970, and in {other} between {_USUAL[0]} and {_USUAL[1]}; say the "
                    "unit that all numbers of the column have"
                )


def _micros(years: tuple[int, int]) -> tuple[int, int]:
    """Microseconds from 1970 to the beginning of the first year, and to the end of the last."""
    first, beyond = (np.datetime64(f"{year:04}-01-01", "us") for year in (years[0], years[1] + 1))
    return int(first.astype(np.int64)), int(beyond.astype(np.int64))


def _whole(
    values: pa.ChunkedArray, unit: TimeUnit, reader: _Reader, years: tuple[int, int]
) -> pa.ChunkedArray:
    """int64 counts of `unit` since 1970 → int64 microseconds, rounded down; null stays null."""
    missing_N = pc.is_null(values).to_numpy()
    numbers_N = pc.fill_null(values, 0).to_numpy()
    factor, divisor = _SCALES[unit]
    low, high = (limit * divisor // factor for limit in _micros(years))
    # Nanoseconds in 64 bits reach from 1677 to 2262
    outside_N = (numbers_N < max(low, -(2**63))) | (numbers_N > min(high, 2**63) - 1)
    reader.refuse_years(outside_N, numbers_N, years)
    return pa.chunked_array([pa.array(numbers_N * factor // divisor, mask=missing_N)])


# Numbers of this size are in this unit, from 1973 to 2286
_SIZES: dict[TimeUnit, tuple[float, float]] = {
    "s": (1e8, 1e10), "ms": (1e11, 1e13), "us": (1e14, 1e16), "ns": (1e17, 1e19)
}  # fmt: skip
_UNIT_NAMES = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"
}  # fmt: skip


def unit_by_size(lowest: float, highest: float) -> TimeUnit | None:
    """Returns the unit since 1970 that numbers from `lowest` to `highest` have, by their size."""
    for unit, (first, beyond) in _SIZES.items():
        if first <= lowest and highest < beyond:
            return unit
    return None


class TimeUnits:
    """Notices that a column of times is in one unit here and in another there.

    Args:
        name: The column.

    Example:
        >>> units = TimeUnits("at")
        >>> units.add(np.array([1_700_000_000]), "a.csv")
        >>> units.add(np.array([1_700_000_000_000]), "b.csv")
        Traceback (most recent call last):
        ValueError: b.csv: column 'at' looks like milliseconds since 1970, but like seconds in \
a.csv; write the column in one unit
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: dict[TimeUnit, str] = {}  # unit → first file that has it

    def add(self, times_N: np.ndarray, file: str) -> None:
        """Looks at more rows of `file`: int64 or float64, as `to_times` gives them.

        Raises:
            ValueError: They are in another unit than those of another file.
        """
        if not len(times_N):
            return
        if (unit := unit_by_size(float(times_N.min()), float(times_N.max()))) is not None:
            self.files.setdefault(unit, file)
        if len(self.files) > 1:
            (one, there), (two, here) = list(self.files.items())[:2]
            raise ValueError(
                f"{here}: column {self.name!r} looks like {_UNIT_NAMES[two]} since 1970, but like "
                f"{_UNIT_NAMES[one]} in {there}; write the column in one unit"
            )
