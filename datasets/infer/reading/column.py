"""Reads a column of a stranger's log: the profile of what its cells mean, and the keys to say so.

Tried in this order, on all rows: plain numbers, ISO 8601, other datetimes, other numbers, lists in
brackets, lists with separators, free text; what is left are ids.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature, NumericFeature
from mmoe.datasets.infer.guess_time import named_as_time
from mmoe.datasets.infer.guess_vectors import VectorFacts
from mmoe.datasets.infer.profile import ColumnProfile, is_iso, of_numbers, profile_column
from mmoe.datasets.infer.reading import lists
from mmoe.datasets.infer.reading.datetimes import (
    datetime_formats,
    look_like_dates,
    read_and_unread,
    read_as,
)
from mmoe.datasets.infer.reading.numbers import (
    missing_words,
    mostly_words,
    number_keys,
    plain_numbers,
    stray_words,
)
from mmoe.datasets.infer.reading.sentinels import sentinels
from mmoe.datasets.values.arrow import decoded, is_text, pc, plain
from mmoe.datasets.values.columns import feature_numbers
from mmoe.datasets.values.datetimes import local_datetimes, present_text
from mmoe.datasets.values.text import settle
from mmoe.datasets.values.written_datetimes import digits_of

_DIGITS = (("%Y%m%d", 19_000_101, 21_001_231),
           ("%Y%m%d%H%M%S", 19_000_101_000_000, 21_001_231_235_959))  # fmt: skip
# Other digits, which are datetimes where the name says so too: Avazu's hour is 14102100
_NAMED_DIGITS = (("%Y%m%d%H", 1_900_010_100, 2_100_123_123),
                 ("%Y%m%d%H%M", 190_001_010_000, 210_012_312_359),
                 ("%y%m%d%H", 10_010_100, 99_123_123),
                 ("%y%m%d", 100_101, 991_231))  # fmt: skip
_LEAST_DAYS = 10  # fewer numbers may be days by chance
_SHOWN = 5  # words named in a comment


def read_column(name: str, column: pa.ChunkedArray) -> ColumnProfile:
    """Profiles all of a column that may be an input.

    Example:
        >>> cells = pa.chunked_array([["$1,200.00", "$5.50", "?", "$80.25"]])
        >>> read_column("price", cells).keys
        {'thousands': ',', 'unit': '$', 'missing_values': ['?']}
    """
    column = decoded(plain(column))
    settled = settle(column) if is_text(column.type) else column
    if is_text(settled.type) and settled.null_count < len(settled):
        found = _of_text(name, settled)
    else:
        found = _of_days(name, settled) or profile_column(name, settled)
    return _without_sentinels(found)


def _of_days(name: str, column: pa.ChunkedArray) -> ColumnProfile | None:
    """Whole numbers that are days or seconds, such as 20231124: many, and each of them is one."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    named = _NAMED_DIGITS if named_as_time(name) else ()
    for form, first, last in (*_DIGITS, *named):
        if low is None or not first <= low <= high <= last:
            continue
        cells = digits_of(column)
        texts = pc.unique(cells.drop_null())
        is_whole = cells.null_count == pc.sum(pc.is_null(column, nan_is_null=True)).as_py()
        if is_whole and len(texts) >= _LEAST_DAYS and read_as(texts, form) is not None:
            return _datetimes(name, column, [{"format": form}])
    return None


def _of_text(name: str, column: pa.ChunkedArray) -> ColumnProfile:
    present = present_text(column).drop_null()
    counted = pc.value_counts(present)
    texts, counts_N = counted.field("values"), counted.field("counts").to_numpy()
    if not len(texts):
        return profile_column(name, column)
    words = missing_words(texts)
    values = texts.filter(pc.invert(pc.is_in(texts, pa.array(words, texts.type))))
    if len(values) and not mostly_words(texts, counts_N, words):
        keys = {"missing_values": words} if words else {}
        found = _of_values(name, column, values, keys)
        if found is not None:
            return found
        stray = stray_words(values, counts_N) if not words and len(values) == len(texts) else None
        if stray:
            return _numbers(name, column, {"missing_values": stray})
    return _of_lists(name, column, present, len(texts))


def _of_values(
    name: str, column: pa.ChunkedArray, values: pa.Array, keys: dict[str, Any]
) -> ColumnProfile | None:
    """Numbers and datetimes, by the distinct texts that are no word for missing."""
    if plain_numbers(values):
        return _numbers(name, column, keys)
    if is_iso(pa.chunked_array([values])):
        return _datetimes(name, column, [keys])
    formats = datetime_formats(values)
    if formats:
        return _datetimes(name, column, [{"format": form} | keys for form in formats])
    written = number_keys(values)
    if written is not None:
        return _numbers(name, column, written | keys)
    if look_like_dates(values):
        some = " and ".join(repr(value) for value in read_and_unread(values))
        why = f"dates, but no one format reads every row (such as {some}); write them in one way"
        return _left_out(name, column, why)
    return None


def _numbers(name: str, column: pa.ChunkedArray, keys: dict[str, Any]) -> ColumnProfile:
    feature = NumericFeature(name="x", column=name, **keys)
    numbers_N = feature_numbers(pa.table({name: column}), feature, name)
    written = f"written as {_first(column)!r}" if feature.text_columns else ""
    words = keys.get("missing_values", [])
    listed = ", ".join(map(repr, words[:_SHOWN]))
    missing = f"{listed} {'mean' if len(words) > 1 else 'means'} missing" if words else ""
    said = "; ".join(filter(None, (written, missing)))
    return of_numbers(name, numbers_N, keys=keys, said=said)


def _datetimes(name: str, column: pa.ChunkedArray, keys: list[dict[str, Any]]) -> ColumnProfile:
    """One way to read them, or two of which a person has to choose."""
    feature = DatetimeFeature(name="x", column=name, parts=["day"], **keys[0])
    local = local_datetimes(pa.table({name: column}), feature, name)
    micros = local.cast(pa.int64())
    seconds_N = pc.fill_null(micros.cast(pa.float64()), float("nan")).to_numpy() / 1e6
    two = len(keys) > 1
    why = "day or month first? every row can be read both ways; choose one" if two else ""
    form = keys[0].get("format")
    return ColumnProfile(
        name=name,
        nature="datetime",
        rows=len(column),
        missing=micros.null_count,
        distinct=pc.count_distinct(micros, mode="only_valid").as_py(),
        numbers_N=seconds_N,
        keys=keys[0],
        said=f"written as {_first(column)!r}" if form else "",
        no_input=why,
        offered=tuple(keys) if two else (),
    )


def _of_lists(
    name: str, column: pa.ChunkedArray, present: pa.ChunkedArray, distinct: int
) -> ColumnProfile:
    profile = profile_column(name, column)
    if profile.vector is not None:
        return profile
    rows = lists.sampled(present)
    brackets = lists.in_brackets(rows)
    if brackets == "lists":
        keys = {"format": "json"}
        return _replaced(profile, nature="list", keys=keys, said="lists in brackets, in text")
    if brackets == "nested":
        return _left_out(name, column, "objects, or lists of lists, in text; flatten them")
    mark = lists.vector_separator(rows)
    length = lists.length_of_all(present, mark) if mark is not None else None
    if length is not None:
        return _replaced(profile, nature="vector", vector=VectorFacts(length))
    if brackets == "fractions" or mark is not None:
        why = "numbers with fractions, which are no ids, nor as many in each row as in a vector"
        return _left_out(name, column, why)
    found = lists.separators_of(rows)
    if found is not None:
        separator, mark = found
        keys = {"separator": separator} if separator != "|" else {}
        said = f"text with {lists.shown(separator)} between items"
        if mark is not None:
            keys["weight_separator"] = mark
            said += f", and {lists.shown(mark)} before their weights"
        return _replaced(profile, separator=separator, keys=keys, said=said)
    why = lists.free_text(rows, len(present), distinct)
    return _replaced(profile, no_input=why)


def _without_sentinels(profile: ColumnProfile) -> ColumnProfile:
    """Numbers such as −999 become missing values."""
    if profile.numbers_N is None or profile.nature not in ("integer", "real"):
        return profile
    found = sentinels(profile.numbers_N)
    if not found:
        return profile
    filled_N = np.isin(profile.numbers_N, found)
    numbers_N = np.where(filled_N, np.nan, profile.numbers_N)
    values = [int(value) if value.is_integer() else value for value in found]
    before = list(profile.keys.get("missing_values", []))
    stands = f"{', '.join(map(str, values))} for missing"
    said = "; ".join(filter(None, (profile.said, stands)))
    keys = dict(profile.keys) | {"missing_values": before + values}
    return of_numbers(profile.name, numbers_N, keys=keys, said=said)


def _left_out(name: str, column: pa.ChunkedArray, why: str) -> ColumnProfile:
    return _replaced(profile_column(name, column), no_input=why)


def _replaced(profile: ColumnProfile, **facts: Any) -> ColumnProfile:
    return ColumnProfile(**{**vars(profile), **facts})


def _first(column: pa.ChunkedArray) -> str:
    return present_text(digits_of(column)).drop_null()[0].as_py()
