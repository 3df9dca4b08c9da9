"""Profiles a column: the facts from which a first config is inferred, vectors and times too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from mmoe.config import TimeUnit
from mmoe.datasets.values.arrow import is_list, is_text, pc, plain
from mmoe.datasets.values.columns import items_of, numbers_of, parse_datetimes, reals_of
from mmoe.datasets.values.text import settle

_LOOKED_AT = 1000  # rows whose numbers are looked at
_FEW = 20  # different numbers: as few are names, or flags
_SHORTEST = 2


@dataclass(frozen=True)
class VectorFacts:
    """Facts about a column of lists of real numbers."""

    length: int  # of the first
    problem: str = ""  # why they are no vectors; "": they are


def look_for_vectors(column: pa.ChunkedArray) -> VectorFacts | None:
    """Returns what is known of lists of real numbers, or None: a column holds something else.

    Real numbers are not all whole, and more than a few differ. Text counts where it stands in
    brackets: without, it may as well be a list of ids.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(50, 3)).tolist()
        >>> look_for_vectors(pa.chunked_array([rows]))
        VectorFacts(length=3, problem='')
        >>> look_for_vectors(pa.chunked_array([[[1.0, 7.0], [2.0]]]))
    """
    present = column.drop_null()
    glance = present.slice(0, _LOOKED_AT)
    if is_text(glance.type):
        bracketed = pc.match_substring_regex(glance, r"^\s*[\[(].*[\])]\s*$")
        may_hold = pc.all(pc.or_(bracketed, pc.equal(glance, ""))).as_py()
    else:
        may_hold = is_list(glance.type) and not pa.types.is_nested(glance.type.value_type)
    if not len(glance) or not may_hold or not _are_real(glance):
        return None
    lengths_N = items_of(column)[1] if is_list(column.type) else _lengths_in_text(column)
    rows = np.flatnonzero(lengths_N)
    if not len(rows):
        return None
    length = int(lengths_N[rows[0]])
    others = rows[lengths_N[rows] != length]
    if len(others):
        first, other = rows[0] + 1, others[0] + 1
        return VectorFacts(
            length,
            f"lists of real numbers, {length} in row {first}, {lengths_N[others[0]]} in row "
            f"{other}: vectors need one length; beside a list of ids they may be its `weights`",
        )
    return VectorFacts(length) if length >= _SHORTEST else None


def _are_real(glance: pa.ChunkedArray) -> bool:
    items, _ = items_of(glance)
    if pa.types.is_integer(items.type) or not len(items):
        return False
    numbers_V = reals_of(items)
    present_V = numbers_V[~np.isnan(numbers_V)]
    # A word among them, and it is no list of numbers
    if len(present_V) < 0.5 * len(numbers_V) or (present_V == np.floor(present_V)).all():
        return False
    return len(np.unique(present_V)) > min(_FEW, len(present_V) // 2)


def _lengths_in_text(column: pa.ChunkedArray) -> np.ndarray:
    """Counts numbers by the commas, or else the spaces between them; 0 where there is none."""
    if not pc.any(pc.match_substring(column, ","), min_count=0).as_py():
        return items_of(column)[1]
    empty = pc.match_substring_regex(column, r"^[\s\[\]()]*$")
    counted = pc.if_else(empty, 0, pc.add(pc.count_substring(column, ","), 1))
    return pc.fill_null(counted, 0).to_numpy().astype(np.int64)


Nature = Literal["integer", "real", "boolean", "text", "list", "vector", "datetime", "other"]

_ISO = re.compile(r"^\d{4}-\d\d(-\d\d)?([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?$")
_EXACT = 2.0**53


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """Facts about one column."""

    name: str  # the column
    nature: Nature  # what it holds; whole floats count as integers (pandas' integers with gaps)
    rows: int  # N
    missing: int  # rows without a value
    distinct: int  # distinct values
    separator: str | None = None  # where text looks like lists, what stands between the items
    # float64 [N], NaN where missing; None for text and lists. Datetimes are seconds since 1970.
    numbers_N: np.ndarray | None = None
    # Keys of a feature of this nature that say how its cells are read
    keys: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""  # how they are read, in words; "" where nothing need be said
    no_input: str = ""  # why no feature can be made of it, or ""
    # Where it may be read in two ways, the keys of each
    offered: tuple[Mapping[str, Any], ...] = ()
    vector: VectorFacts | None = None  # of lists of real numbers
    of_day: bool = False  # it holds times of day, which are no moments

    @property
    def unique_per_row(self) -> bool:
        """Whether every row has its own value; not of real numbers, nor of lists."""
        present = self.rows - self.missing
        alone = self.nature in ("integer", "text") and self.separator is None
        return alone and present > 2 and self.distinct == present

    def take(self, rows: np.ndarray) -> "ColumnProfile":
        """Returns the column with the numbers of some rows only; counts stay those of all."""
        numbers_N = None if self.numbers_N is None else self.numbers_N[rows]
        return replace(self, numbers_N=numbers_N)


def profile_column(name: str, column: pa.ChunkedArray) -> ColumnProfile:
    """Profiles all of a column as it is; `read_column` also knows what people write.

    Example:
        >>> profile_column("x", pa.chunked_array([["7", "8", None]])).nature
        'integer'
    """
    column = plain(column)
    if is_text(column.type):
        column = settle(column)
    vector = look_for_vectors(column)
    nature = _nature(column) if vector is None else "vector"
    missing = int(pc.sum(pc.is_null(column, nan_is_null=True).cast(pa.int64())).as_py() or 0)
    distinct = 0
    if nature not in ("list", "vector", "other") and not pa.types.is_null(column.type):
        held = column
        if pa.types.is_floating(column.type):
            held = pc.if_else(pc.is_nan(column), None, column)
        distinct = int(pc.count_distinct(held, mode="only_valid").as_py())
    numbers_N = None
    if nature in ("integer", "real", "boolean") or (
        nature == "datetime" and not is_text(column.type)
    ):
        numbers_N = numbers_of(column)
    return ColumnProfile(
        name=name,
        nature=nature,
        rows=len(column),
        missing=missing,
        distinct=distinct,
        numbers_N=numbers_N,
        vector=vector,
        of_day=pa.types.is_time(column.type),
    )


def of_numbers(name: str, numbers_N: np.ndarray, **facts: Any) -> ColumnProfile:
    """Profiles a column by its numbers, float64 [N], NaN where missing."""
    present = numbers_N[~np.isnan(numbers_N)]
    values = np.unique(present)
    whole = np.array_equal(values, np.floor(values)) and (np.abs(values) < _EXACT).all()
    return ColumnProfile(
        name=name,
        nature="integer" if whole else "real",
        rows=len(numbers_N),
        missing=len(numbers_N) - len(present),
        distinct=len(values),
        numbers_N=numbers_N,
        **facts,
    )


def _nature(column: pa.ChunkedArray) -> Nature:
    kind = column.type
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return "integer"
    if pa.types.is_decimal(kind):  # beyond 2^53 a float cannot tell
        floor = pc.floor(column)
        return "integer" if pc.all(pc.equal(column, floor), min_count=0).as_py() else "real"
    if pa.types.is_floating(kind) or pa.types.is_time(kind):
        numbers_N = numbers_of(column)
        assert numbers_N is not None
        present = numbers_N[~np.isnan(numbers_N)]
        whole = np.array_equal(present, np.floor(present)) and (np.abs(present) < _EXACT).all()
        return "integer" if len(present) and whole else "real"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "datetime"
    if is_text(kind):
        return "datetime" if is_iso(column) else "text"
    if is_list(kind) and not pa.types.is_nested(kind.value_type):
        return "list"
    return "other"


def is_iso(column: pa.ChunkedArray) -> bool:
    """Returns whether all of it is ISO 8601, in one way."""
    present = column.drop_null()
    glance = present.slice(0, 100).to_pylist()
    if not glance or not all(_ISO.match(value) for value in glance):
        return False
    return parse_datetimes(present) is not None


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
_FINE = 100  # values of a time by which rows can be split as closely as shares ask for
_ORDERED = 0.95  # share of steps that do not go back
_ORDERED_OVERALL = 0.8  # correlation with the row number; times need not pass evenly


class TimeLike(StrEnum):
    """Evidence that a column looks like datetimes."""

    DATES = "dates"
    SINCE_1970 = "times since 1970"
    YYYYMMDD = "days written as yyyymmdd"
    RISES = "a time by its name, and it rises down the file"


def guess_times(profiles: list[ColumnProfile]) -> list[tuple[ColumnProfile, TimeLike]]:
    """Returns what may be the event's time, the likeliest first, and how it was recognised."""
    found = [
        (profile, reason)
        for profile in profiles
        if (reason := time_like(profile)) and profile.distinct >= 3 and not profile.missing
        if not profile.no_input
        if not _OTHER_DATE.search(profile.name.lower())
    ]
    return sorted(found, key=_finest_first)


def _finest_first(found: tuple[ColumnProfile, TimeLike]) -> tuple[bool, bool, bool, int]:
    """Orders times: a year or month after a date, named ones, true ones, then the most distinct."""
    profile, reason = found
    rises = reason is TimeLike.RISES
    return rises and is_coarse(profile), not named_as_time(profile.name), rises, -profile.distinct


def is_coarse(profile: ColumnProfile) -> bool:
    """Returns whether a time has fewer values than rows can be split by closely, as years do."""
    return profile.distinct < _FINE


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
    # Few steps back, and the whole way up: the hour of the day in a sorted log starts over
    if len(present) > 20 and profile.distinct > 2 and (np.diff(present) >= 0).mean() >= _ORDERED:
        overall = float(np.corrcoef(present, np.arange(len(present)))[0, 1])
        return TimeLike.RISES if overall >= _ORDERED_OVERALL else None
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
