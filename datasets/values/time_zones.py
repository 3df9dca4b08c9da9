"""Converts datetimes of UTC to what the clock of a time zone shows."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

_SECOND = 1_000_000  # microseconds
_STEP = 86_400  # seconds; the clock is never put forward and back again within so many
_YEARS = (2, 9998)  # what is outside has the offset of the first or last second of these


def local_micros(micros_N: np.ndarray, zone: str) -> np.ndarray:
    """Converts UTC microseconds to local ones.

    Arrow's own conversion knows summer time up to the last change that a file of the time zone
    lists, 2037 or much earlier, and not the rule that goes on from there.

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
    first, beyond = (_start_of(year) for year in (_YEARS[0], _YEARS[1] + 1))
    seconds_N = np.clip(micros_N // _SECOND, first, beyond - 1)
    years_N = seconds_N.astype("M8[s]").astype("M8[Y]").astype(np.int64) + 1970
    tables = [_offsets(zone, year) for year in np.flatnonzero(np.bincount(years_N)).tolist()]
    if not tables:
        return micros_N
    starts, offsets = (np.concatenate(columns) for columns in zip(*tables, strict=True))
    return micros_N + offsets[np.searchsorted(starts, seconds_N, side="right") - 1] * _SECOND


@lru_cache(maxsize=1024)
def _offsets(zone: str, year: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds since 1970 from which on, in this year, local time is so many seconds ahead."""
    info, epoch = ZoneInfo(zone), datetime(1970, 1, 1, tzinfo=UTC)

    def ahead(second: int) -> float:
        offset = (epoch + timedelta(seconds=second)).astimezone(info).utcoffset()
        return 0.0 if offset is None else offset.total_seconds()

    begin, end = _start_of(year), _start_of(year + 1)
    found = [(begin, ahead(begin))]
    for second in [*range(begin + _STEP, end, _STEP), end - 1]:
        if ahead(second) != found[-1][1]:
            change = _first_change(ahead, second - _STEP, second)
            found.append((change, ahead(change)))
    starts, offsets = zip(*found, strict=True)
    return np.array(starts, np.int64), np.array(offsets, np.int64)


def _first_change(ahead: Callable[[int], float], before: int, after: int) -> int:
    """The second at which the offset becomes another one than `before` has."""
    old = ahead(before)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if ahead(middle) == old else (before, middle)
    return after


def _start_of(year: int) -> int:
    return int(np.datetime64(f"{year:04}-01-01", "s").astype(np.int64))
