"""When rows and events happened, in microseconds since 1970."""

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature
from mmoe.config.data import TimeConfig
from mmoe.config.features import TimeUnit
from mmoe.datasets.rows.locations import find_column, place
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_text, pc
from mmoe.datasets.values.datetimes import local_datetimes

# Numbers of this size are in this unit, from 1973 to 2286
_SIZES: tuple[tuple[TimeUnit, float, float], ...] = (
    ("s", 1e8, 1e10), ("ms", 1e11, 1e13), ("us", 1e14, 1e16), ("ns", 1e17, 1e19)
)  # fmt: skip
MISSING = np.iinfo(np.int64).max
"""Stands where an event has no time."""


def row_times(table: pa.Table, time: TimeConfig, origin: str) -> np.ndarray:
    """Reads when each row happened.

    Timestamps, dates, ISO 8601 text, text of `time.format`, and numbers since 1970; UTC where no
    zone is given.

    Args:
        table: N rows.
        time: The column, and how it is read.
        origin: Starts error messages.

    Returns:
        int64 [N], microseconds since 1970.

    Raises:
        ValueError: The column is not there, or a cell is empty or no datetime; names the row.

    Example:
        >>> table = pa.table({"at": ["1970-01-01T00:00:01", "1970-01-02"]})
        >>> row_times(table, TimeConfig(column="at"), "log.csv").tolist()
        [1000000, 86400000000]
    """
    assert time.column is not None, "a run without it has no labels that mature"
    times_N = _micros(table, time.column, time, origin, "data.time")
    missing_N = times_N == MISSING
    if missing_N.any():
        where = place(table, origin, int(missing_N.argmax()))
        raise ValueError(
            f"{where}: column {time.column!r} (of data.time) is empty, but matures_after needs "
            "every row's time; mend the cell, or drop the row"
        )
    return times_N


def event_times(table: pa.Table, name: str, time: TimeConfig, origin: str, task: str) -> np.ndarray:
    """Reads when the event of a task happened: int64 [N] as `row_times`; `MISSING` where it didn't.

    Raises:
        ValueError: The column is not there, or a cell is no datetime.
    """
    return _micros(table, name, time, origin, f"happened_at of task {task!r}")


def _micros(table: pa.Table, name: str, time: TimeConfig, origin: str, used_by: str) -> np.ndarray:
    column = find_column(table, name, origin, used_by)
    unit = time.unit
    if unit is None and time.format is None:
        unit = _unit_by_size(column, f"{origin}: column {name!r} (of {used_by})")
    reading = DatetimeFeature(
        name="time", column=name, unit=unit, format=time.format, parts=["day"]
    )
    moments = local_datetimes(table, reading, origin, used_by).cast(pa.int64())
    return pc.fill_null(moments, MISSING).to_numpy()


def _unit_by_size(column: pa.ChunkedArray, where: str) -> TimeUnit | None:
    """The unit that all numbers of a column are in; None: it holds no numbers."""
    if is_text(column.type):  # as other files than those of training are read
        first = text.blank_to_null(column).drop_null()[:1]
        numbers = text.to_reals(column) if text.to_reals(first).null_count < len(first) else None
        column = numbers if numbers is not None else pa.chunked_array([], pa.float64())
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return None
    for unit, first, beyond in _SIZES:
        if first <= ends["min"] and ends["max"] < beyond:
            return unit
    raise ValueError(
        f"{where} holds {ends['min']} to {ends['max']}, numbers that are seconds, milli-, micro- "
        "or nanoseconds since 1970 of no usual year; set data.time.unit (s, ms, us or ns), or "
        "data.time.format, such as %Y%m%d"
    )
