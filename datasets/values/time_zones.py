"""Converts datetimes of UTC to what the clock of a time zone shows."""

from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

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
