"""Guesses which column is the event's time."""

import re
from enum import StrEnum

import numpy as np

from mmoe.config import TimeUnit
from mmoe.datasets.infer.profile import ColumnProfile

_TIME_NAME = re.compile(
    r"(^|_)(time|timestamp|datetime|date|ts|dt|day|hour|week|month|created|created_at|event_time|"
    r"impression_time|logged_at|at)($|_|\d)|(time|date|timestamp|_at|_ts)$"
)
# Dates of a person's or item's life, not of the event: splitting by them splits the users.
_OTHER_DATE = re.compile(
    r"birth|dob|sign_?up|register|registration|joined|expir|publish|release|upload|deadline|first_"
)
_SECONDS = (6.3e8, 4.1e9)  # 1990 to 2100, in seconds since 1970
_UNITS: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_DAYS = (19_900_101, 21_001_231)  # written as yyyymmdd
_ORDERED = 0.95  # share of steps that do not go back
_ORDERED_OVERALL = 0.8  # correlation with the row number; times need not pass evenly


class TimeLike(StrEnum):
    """Why a column looks like datetimes."""

    DATES = "dates"
    SINCE_1970 = "times since 1970"
    YYYYMMDD = "days written as yyyymmdd"
    RISES = "a time by its name, and it rises down the file"


def guess_time(profiles: list[ColumnProfile]) -> tuple[ColumnProfile, TimeLike] | None:
    """Returns the event's time and how it was recognised; None where there is none."""
    found = [
        (_rank(profile, reason), profile, reason)
        for profile in profiles
        if (reason := time_like(profile)) and profile.distinct >= 3 and not profile.missing
        if not profile.no_input
        if not _OTHER_DATE.search(profile.name.lower())
    ]
    if not found:
        return None
    _, profile, reason = min(found, key=lambda item: item[0])
    return profile, reason


def named_as_time(name: str) -> bool:
    """Returns whether a column is called a time."""
    return bool(_TIME_NAME.search(name.lower()))


def time_like(profile: ColumnProfile) -> TimeLike | None:
    """Says why a column looks like datetimes, or None."""
    if profile.nature == "datetime":
        return TimeLike.DATES
    numbers_N = profile.numbers_N
    if numbers_N is None or profile.nature not in ("integer", "real") or profile.of_day:
        return None
    present = numbers_N[~np.isnan(numbers_N)]
    if not len(present) or not _TIME_NAME.search(profile.name.lower()):
        return None
    if unit_of(profile):
        return TimeLike.SINCE_1970
    low, high = float(present.min()), float(present.max())
    if profile.nature == "integer" and _DAYS[0] <= low and high <= _DAYS[1]:
        return TimeLike.YYYYMMDD
    if len(present) > 20 and profile.distinct > 2 and _rises(present):
        return TimeLike.RISES
    return None


def unit_of(profile: ColumnProfile) -> TimeUnit | None:
    """Returns in which unit all numbers are times since 1970, between 1990 and 2100, or None."""
    numbers_N = profile.numbers_N
    if numbers_N is None or np.isnan(numbers_N).all():
        return None
    low, high = float(np.nanmin(numbers_N)), float(np.nanmax(numbers_N))
    for unit, size in _UNITS.items():
        if _SECONDS[0] * size <= low and high <= _SECONDS[1] * size:
            return unit
    return None


def _rises(values: np.ndarray) -> bool:
    """Few steps back, and the whole way up: the hour of the day in a sorted log starts over."""
    if (np.diff(values) >= 0).mean() < _ORDERED:
        return False
    return float(np.corrcoef(values, np.arange(len(values)))[0, 1]) >= _ORDERED_OVERALL


def _rank(profile: ColumnProfile, reason: TimeLike) -> tuple[bool, bool, int]:
    """Finest true time first: named like a time, not merely ordered, then the most distinct."""
    named = bool(_TIME_NAME.search(profile.name.lower()))
    return (not named, reason is TimeLike.RISES, -profile.distinct)
