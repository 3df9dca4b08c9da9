"""Times of events: how long ago each was, in buckets that grow."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature, SequenceFeature
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING
from mmoe.datasets.features.ragged import blank_items
from mmoe.datasets.features.sequences.events import event_items
from mmoe.datasets.rows.locations import find_column, place
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_text, pc
from mmoe.datasets.values.columns import numbers_of
from mmoe.datasets.values.datetimes import local_datetimes

# Each is √2 times as long as the one before: the last begins at 2^31.5 seconds, 95 years
_BUCKETS = 64
GAP_ROWS = FIRST_KNOWN + _BUCKETS
_LONGEST = 2.0**32  # seconds, 136 years: where a bucket after the last would begin
# Divided by, not multiplied with 1e-3: that is the float that a datetime of the moment has, too
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}


def gap_ids(since_V: np.ndarray) -> np.ndarray:
    """Returns the bucket of each time since an event, int32 [V]: `2 + ⌊2 log₂(1 + seconds)⌋`.

    0 where it is not known.

    Example:
        >>> gap_ids(np.array([0, 1, 60, 86_400, np.nan])).tolist()
        [2, 4, 13, 34, 0]
    """
    known_V = np.isfinite(since_V)
    bucket_V = np.floor(2 * np.log2(1 + np.where(known_V, since_V, 0)))
    bucket_V = np.minimum(bucket_V, _BUCKETS - 1).astype(np.int32)
    return np.where(known_V, FIRST_KNOWN + bucket_V, MISSING).astype(np.int32)


def seconds_since(
    table: pa.Table, feature: SequenceFeature, origin: str
) -> tuple[np.ndarray, np.ndarray]:
    """Reads how long before the row's time each event was, and how many each row has.

    Args:
        table: N rows.
        feature: A sequence with times.
        origin: Starts error messages.

    Returns:
        Seconds, float64 [V], NaN where a time is missing; and lengths, int64 [N].

    Raises:
        ValueError: What is no time, not as many times as events, times that run backwards, an
            event after the row's own time, or one so long before it that their units must differ;
            names file, row and column.
    """
    assert feature.times is not None
    values, lengths_N = event_items(table, feature.times, feature, origin)
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    at_V = _seconds(values, feature, feature.times, table, origin, row_V)
    _refuse_backwards(at_V, row_V, table, feature, origin)
    if feature.now is None:
        now_N = _newest(at_V, row_V, len(lengths_N))
    else:
        column = find_column(table, feature.now, origin, f"feature {feature.name!r}")
        rows_N = np.arange(table.num_rows)
        now_N = _seconds(column, feature, feature.now, table, origin, rows_N)
    since_V = now_N[row_V] - at_V
    after_V = since_V < 0
    if after_V.any():
        row = int(row_V[after_V.argmax()])
        raise ValueError(
            f"{place(table, origin, row)}: column {feature.times!r} (of feature {feature.name!r}) "
            f"has an event {-since_V[after_V.argmax()]:g} s after {feature.now!r}, the row's own "
            "time; leave out what happens later: when rows are scored it is not known"
        )
    _refuse_too_long(since_V, row_V, table, feature, origin)
    return since_V, lengths_N


def _newest(at_V: np.ndarray, row_V: np.ndarray, rows: int) -> np.ndarray:
    newest_N = np.full(rows, -np.inf)
    known_V = ~np.isnan(at_V)
    np.maximum.at(newest_N, row_V[known_V], at_V[known_V])
    return newest_N


def _refuse_too_long(
    since_V: np.ndarray, row_V: np.ndarray, table: pa.Table, feature: SequenceFeature, origin: str
) -> None:
    """Times in other units would all be in the last bucket."""
    wrong_V = np.isfinite(since_V) & (since_V >= _LONGEST)
    if wrong_V.any():
        first = int(wrong_V.argmax())
        until = "the row's latest event" if feature.now is None else f"{feature.now!r}"
        raise ValueError(
            f"{place(table, origin, int(row_V[first]))}: column {feature.times!r} (of feature "
            f"{feature.name!r}) has an event {since_V[first]:g} s before {until}, more than 136 "
            "years: are they in other units? Numbers count seconds unless `unit` says otherwise; "
            "give both the same unit, and leave out a time that is not known"
        )


def _refuse_backwards(
    at_V: np.ndarray, row_V: np.ndarray, table: pa.Table, feature: SequenceFeature, origin: str
) -> None:
    known_V = np.flatnonzero(~np.isnan(at_V))
    steps = np.diff(at_V[known_V])
    wrong = (steps < 0) if feature.newest == "last" else (steps > 0)
    wrong &= np.diff(row_V[known_V]) == 0
    if wrong.any():
        first = int(wrong.argmax())
        row = int(row_V[known_V[first]])
        other = "first" if feature.newest == "last" else "last"
        order = "the oldest first" if feature.newest == "last" else "the newest first"
        raise ValueError(
            f"{place(table, origin, row)}: column {feature.times!r} (of feature {feature.name!r}) "
            f"has times that run backwards (by {abs(steps[first]):g} s), expected {order}; sort "
            f"each row's events, or say newest: {other} if all rows are that way round"
        )


def _seconds(
    column: pa.ChunkedArray,
    feature: SequenceFeature,
    name: str,
    table: pa.Table,
    origin: str,
    row_V: np.ndarray,
) -> np.ndarray:
    """Seconds since 1970, or since any moment where they are numbers; NaN where missing."""
    kind = column.type
    if len(column) == 0 or column.null_count == len(column):
        return np.full(len(column), np.nan)
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numeric or is_text(kind):
        column = blank_items(column)
        numbers = numbers_of(column)
        assert numbers is not None, "of numbers and text"
        is_number_V = ~np.isnan(numbers)
        told_V = is_number_V if numeric else pc.is_valid(text.blank_to_null(column)).to_numpy()
        refuse = _Refusal(column, name, feature, table, origin, row_V)
        if is_number_V.any() and not is_number_V[told_V].all():
            refuse.two_ways(told_V, is_number_V)
        refuse.infinite(numbers)
        if is_number_V.any() or not told_V.any():
            unit = feature.unit or "s"
            return _of_nanos(column, numbers) if unit == "ns" else numbers / _PER_SECOND[unit]
    read = DatetimeFeature(name=feature.name, column=name, parts=["weekday"])
    named = pa.table({name: column})
    try:
        micros = local_datetimes(named, read, "times")
    except ValueError as error:
        raise ValueError(_of_row(str(error), table, origin, row_V)) from None
    seconds = micros.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.float64) / 1e6
    return np.where(micros.is_null().to_numpy(zero_copy_only=False), np.nan, seconds)


def _of_nanos(column: pa.ChunkedArray, numbers: np.ndarray) -> np.ndarray:
    """Whole microseconds as seconds, as datetimes have them: a float64 holds no 19 digits."""
    try:
        whole = pc.fill_null(column.cast(pa.int64()), 0).to_numpy() // 1000
    except pa.ArrowInvalid:  # fractions, and words for missing
        whole = np.floor(numbers / 1e3)
    return np.where(np.isnan(numbers), np.nan, whole / 1e6)


class _Refusal(NamedTuple):
    """Says which row of a table has an item that is no time."""

    column: pa.ChunkedArray
    name: str
    feature: SequenceFeature
    table: pa.Table
    origin: str
    row_V: np.ndarray

    def two_ways(self, told_V: np.ndarray, is_number_V: np.ndarray) -> None:
        """Numbers and text beside one another: one of them would be lost."""
        first = int(told_V.argmax())
        other = int((told_V & (is_number_V != is_number_V[first])).argmax())
        row = place(self.table, self.origin, int(self.row_V[first]))
        raise ValueError(
            f"{self._item(other)}, but {self.column[first].as_py()!r} in {row}: numbers and "
            "datetimes in one column; write all times in one way, or leave out what is no time"
        )

    def infinite(self, numbers: np.ndarray) -> None:
        """It would make the times of the row's other events infinite, too."""
        infinite_V = np.isinf(numbers)
        if infinite_V.any():
            raise ValueError(
                f"{self._item(int(infinite_V.argmax()))}, expected a time; leave out what is not "
                "known"
            )

    def _item(self, index: int) -> str:
        row = place(self.table, self.origin, int(self.row_V[index]))
        return (
            f"{row}: column {self.name!r} (of feature {self.feature.name!r}) has the time "
            f"{self.column[index].as_py()!r}"
        )


def _of_row(message: str, table: pa.Table, origin: str, row_V: np.ndarray) -> str:
    """Says the row of the table where an error says that of an item, counted from 1."""
    start, found, rest = message.partition("times: row ")
    number, colon, rest = rest.partition(":")
    if start or not found or not number.isdigit() or not colon:
        return message.replace("times:", f"{origin}:", 1)
    return f"{place(table, origin, int(row_V[int(number) - 1]))}:{rest}"
