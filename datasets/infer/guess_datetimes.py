"""Datetime features from columns that hold times: which parts of them come again."""

from typing import Any

import numpy as np

from mmoe.config import DatetimeFeature, FeatureConfig, Part
from mmoe.datasets.infer.guess_time import TimeLike, time_like
from mmoe.datasets.infer.profile import ColumnProfile

_HOUR, _DAY = 3_600.0, 86_400.0
# Days of the log from which on a part's values come back often enough to learn from
_LEAST_DAYS: tuple[tuple[Part, float], ...] = (("hour", 2), ("weekday", 14), ("month", 730))
_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9))
_BEYOND = 4.1e9  # seconds since 1970, in 2099


def datetime_feature(profile: ColumnProfile, name: str) -> tuple[FeatureConfig, str] | None:
    """Returns the feature that a column of datetimes becomes and the reason, or None.

    None: it holds no datetimes, or none of their parts comes again (one hour of one day).

    Args:
        profile: Of the column.
        name: Of the feature.
    """
    keys = datetime_keys(profile)
    if keys is None:
        return None
    column = None if name == profile.name else profile.name
    feature = DatetimeFeature(name=name, column=column, **keys)
    missing = f", {100 * profile.missing / profile.rows:.2g} % missing" if profile.missing else ""
    said = f"{profile.said}: " if profile.said else ""
    return feature, f"{said}datetimes, of which {' and '.join(keys['parts'])} come again{missing}"


def datetime_keys(profile: ColumnProfile) -> dict[str, Any] | None:
    """Returns the keys of that feature, `parts` among them; None where there is none."""
    if profile.no_input or profile.numbers_N is None:
        return None
    like = time_like(profile)
    if like is None or like is TimeLike.RISES:
        return None
    seconds_N, keys = _seconds(profile, like)
    parts = _parts(seconds_N[~np.isnan(seconds_N)])
    return None if not parts else keys | {"parts": parts}


def offered_features(profile: ColumnProfile, name: str) -> list[FeatureConfig]:
    """Lists the features of which a person has to choose one, where a column has two readings."""
    column = None if name == profile.name else profile.name
    return [
        DatetimeFeature(name=name, column=column, parts=["weekday", "month"], **keys)
        for keys in profile.offered
    ]


def _seconds(profile: ColumnProfile, like: TimeLike) -> tuple[np.ndarray, dict[str, Any]]:
    """Seconds since 1970, and the keys by which the feature reads them."""
    numbers_N = profile.numbers_N
    assert numbers_N is not None
    if like is TimeLike.DATES:
        return numbers_N, dict(profile.keys)
    missing = {}  # of numbers they are numbers, of datetimes words
    if "missing_values" in profile.keys:
        missing = {"missing_values": [str(value) for value in profile.keys["missing_values"]]}
    if like is TimeLike.YYYYMMDD:
        filled_N = np.nan_to_num(numbers_N, nan=19700101).astype(np.int64)
        days_N = (filled_N // 10_000 - 1970) * 365.25 + (filled_N // 100 % 100 - 1) * 30.4
        seconds_N = np.floor(days_N + filled_N % 100) * _DAY
        return np.where(np.isnan(numbers_N), np.nan, seconds_N), {"format": "%Y%m%d"} | missing
    unit, scale = next(u for u in _UNITS if np.nanmax(numbers_N) <= _BEYOND * u[1])
    return numbers_N / scale, {"unit": unit} | missing


def _parts(seconds: np.ndarray) -> list[Part]:
    if not len(seconds):
        return []
    days = (seconds.max() - seconds.min()) / _DAY
    parts: list[Part] = [part for part, least in _LEAST_DAYS if days >= least]
    # A column of days says no hour, and one hour of all days says nothing
    same = seconds[0] // _HOUR % 24
    one_hour = not (seconds % _DAY).any() or bool((seconds // _HOUR % 24 == same).all())
    return [part for part in parts if part != "hour" or not one_hour]
