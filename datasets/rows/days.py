"""Days of rows: a date column, datetimes cut at midnight UTC, or whole numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa

from mmoe.config import SplitConfig
from mmoe.datasets.rows.locations import find_column
from mmoe.datasets.values.arrow import is_text
from mmoe.datasets.values.columns import to_times
from mmoe.datasets.values.hashing import mix64

_DAY = 86_400_000_000  # microseconds
_EPOCH = date(1970, 1, 1).toordinal()
# Whole numbers from here on are seconds, milli-, micro- or nanoseconds since 1970 (1973 to 2286)
_FIRST_MOMENT = 10**8
_PER_DAY = ((10**8, 86_400), (10**11, 86_400_000), (10**14, _DAY), (10**17, _DAY * 1000))

NO_SPLIT = 3  # of rows on other days


@dataclass(frozen=True, order=True)
class Day:
    """A day of rows: `dated`, days since 1970; else a number as the data has it (3, or 20240131).

    Example:
        >>> str(Day.parse("2024-01-31")), str(Day.parse("20240131")), Day.parse("7").number
        ('2024-01-31', '20240131', 7)
    """

    number: int
    dated: bool

    def __str__(self) -> str:
        return (
            date.fromordinal(self.number + _EPOCH).isoformat() if self.dated else f"{self.number}"
        )

    @classmethod
    def parse(cls, text: str) -> "Day":
        """Reads a day that `str` wrote.

        Raises:
            ValueError: It is neither an ISO date nor a whole number.
        """
        try:
            return cls(int(text), False)
        except ValueError:
            pass
        try:
            return cls(date.fromisoformat(text).toordinal() - _EPOCH, True)
        except ValueError:
            raise ValueError(
                f"data.split: {text!r} is no day; write 2024-01-31, or a whole number"
            ) from None


def days_of(
    table: pa.Table, name: str, origin: str, form: str | None = None
) -> tuple[np.ndarray, bool]:
    """Returns the day of every row.

    Dates, datetimes and text are dated; so are whole numbers that look like times since 1970, or
    that have a format. Other whole numbers are days as they are.

    Args:
        table: N rows.
        name: The column.
        origin: Starts error messages.
        form: As for `to_times`.

    Returns:
        int64 [N] as `Day.number`, and whether they are dated.

    Raises:
        ValueError: The column is missing, holds an empty cell, or no days.

    Example:
        >>> table = pa.table({"at": ["1970-01-02T23:59:00", "1970-01-03"], "n": [7, 8]})
        >>> days_of(table, "at", "log.csv"), days_of(table, "n", "log.csv")
        ((array([1, 2]), True), (array([7, 8]), False))
    """
    times_N = to_times(table, name, origin, form)
    column = find_column(table, name, origin, "data.split.column")
    kind = column.type
    dated = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    if dated or form is not None or _iso_text(column):
        return times_N // _DAY, True
    if times_N.dtype.kind == "f":
        if not np.array_equal(times_N, np.floor(times_N)):
            raise ValueError(
                f"{origin}: column {name!r} holds numbers with a fraction, expected days; write "
                "dates (2024-01-31), moments or whole numbers"
            )
        times_N = times_N.astype(np.int64)
    if not len(times_N) or int(times_N.max()) < _FIRST_MOMENT:
        return times_N.astype(np.int64), False
    if int(times_N.min()) < _FIRST_MOMENT:
        raise ValueError(
            f"{origin}: column {name!r} holds {int(times_N.min())} as well as "
            f"{int(times_N.max())}: days, or moments since 1970? Write one of them"
        )
    per_day = max(unit for first, unit in _PER_DAY if int(times_N.min()) >= first)
    return times_N.astype(np.int64) // per_day, True


def _iso_text(column: pa.ChunkedArray) -> bool:
    """Text that is no whole number; `to_times` has found that it can be ordered."""
    if not is_text(column.type) or not len(column):
        return False
    return not str(column[0].as_py()).strip().lstrip("+-").isdigit()


def day_splits(
    table: pa.Table,
    split: SplitConfig,
    seed: int,
    origin: str,
    first: int = 0,
    drawn_N: np.ndarray | None = None,
) -> np.ndarray:
    """Assigns splits by day, int8 [N]: 0 = training, 1 = validation, 2 = test, 3 = none.

    Args:
        table: N rows that are number `first` and up of the data set.
        split: `train_days`, of whose rows a random share is validation, and `test_days`.
        seed: Which rows validate.
        origin: Starts error messages.
        first: See `table`.
        drawn_N: What rows that validate are drawn by, uint64; None: by their numbers.

    Raises:
        ValueError: The column holds no days, or days of another kind than the config's.
    """
    assert split.column is not None
    days_N, dated = days_of(table, split.column, origin, split.format)
    train, test = (
        _numbers(days or [], dated, split.column, origin)
        for days in (split.train_days, split.test_days)
    )
    if drawn_N is None:
        drawn_N = np.arange(first, first + len(days_N), dtype=np.uint64)
    uniform_N = (mix64(drawn_N, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53  # exact
    split_N = np.full(len(days_N), NO_SPLIT, np.int8)
    split_N[np.isin(days_N, test)] = 2
    train_N = np.isin(days_N, train)
    split_N[train_N] = (uniform_N[train_N] < split.validation).astype(np.int8)
    return split_N


def _numbers(days: Sequence[str], dated: bool, name: str, origin: str) -> list[int]:
    parsed = [Day.parse(day) for day in days]
    for day in parsed:
        if day.dated != dated:
            kinds = ("numbers", "dates")
            raise ValueError(
                f"{origin}: column {name!r} holds {kinds[dated]}, but data.split names the day "
                f"{day}; write the config's days as {kinds[dated]}"
            )
    return [day.number for day in parsed]
