"""Reads a column of a stranger's log: the profile of what its cells mean, and the keys to say so.

Tried in this order, on all rows: plain numbers, ISO 8601, other datetimes, other numbers, lists in
brackets, lists with separators, free text; what is left are ids.
"""

import re
import unicodedata
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature, NumericFeature
from mmoe.datasets.infer.profile import (
    ColumnProfile,
    VectorFacts,
    is_iso,
    named_as_time,
    of_numbers,
    profile_column,
)
from mmoe.datasets.values.arrow import decoded, is_text, pc, plain
from mmoe.datasets.values.columns import feature_numbers, parse_written, tidied
from mmoe.datasets.values.datetimes import digits_of, local_datetimes, parse_format, present_text
from mmoe.datasets.values.text import parse_lists, settle

SAMPLED = 20_000  # rows looked at
_SEPARATORS = ("|", ";", "^", "\t", "\x01", "\x02", ",")
_WEIGHT_MARKS = ("\x03", ":", "=")
_WEIGHT = r"\s*\d*\.?\d+([eE][+-]?\d+)?$"
_LEAST = 0.1  # share of rows that hold the separator
_LISTS = 0.99  # share of rows that are lists in brackets
_REPEATS = 20  # rows an item, where blanks part items that are words
_MANY_WORDS, _DIFFERENT = 5, 0.5  # words a row, share of different rows
_FEW_WORDS, _LONG, _OWN = 2.5, 30, 0.95  # words or characters a row: titles, addresses of pages
_ROWS = 20  # fewer say nothing
_FRACTION = r"^[+-]?\d*\.\d+([eE][+-]?\d+)?$"


_RowsT = TypeVar("_RowsT", pa.ChunkedArray, pa.Table)


def sampled(rows: _RowsT) -> _RowsT:
    """Returns at most about SAMPLED of the rows, from everywhere."""
    step = -(-len(rows) // SAMPLED)
    return rows if step <= 1 else rows.take(pa.array(range(0, len(rows), step)))


def in_brackets(rows: pa.ChunkedArray) -> str | None:
    """Says what text in brackets is: "lists", "fractions" (vectors), "nested"; None: no brackets.

    Example:
        >>> in_brackets(pa.chunked_array([pa.array(["[1, 2]", "[]"], pa.large_string())]))
        'lists'
    """
    looks = pc.match_substring_regex(rows, r"(?s)^\s*[\[({].*[\])}]\s*$")
    if _share(looks) < _LISTS:
        return None
    lists, wrong = parse_lists(rows)
    if _share(wrong) > 1 - _LISTS:
        return "nested"
    return "fractions" if _are_fractions(pc.list_flatten(lists)) else "lists"


def separators_of(rows: pa.ChunkedArray) -> tuple[str, str | None] | None:
    """Returns what parts the items, where items come back in other combinations; else None.

    There are fewer items than texts, and each comes twice on average. Blanks part items only where
    these hold digits (N1234 N17), or come back often: else they part words. The second separator
    is that of a weight behind each item, if there are fractions: `sports:0.7|news:0.3`.
    """
    if len(rows) < 3:
        return None
    distinct = pc.count_distinct(rows).as_py()
    for separator in (*_SEPARATORS, " "):
        holds = pc.match_substring(rows, separator)
        if _share(holds) < _LEAST:
            continue
        items, mark = _without_weights(_items(rows, separator))
        kinds = pc.count_distinct(items).as_py()
        if not (kinds < distinct and kinds <= len(items) / 2) or _are_fractions(items):
            continue
        if separator == " ":
            digits = _share(pc.match_substring_regex(items, r"\d")) >= 0.9
            often = len(items) >= _REPEATS * kinds and distinct >= 2 * kinds
            if digits or often:
                return separator, mark
        elif _share(pc.match_substring(items, " ")) <= 0.5:
            return separator, mark
    return None


def _without_weights(items: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str | None]:
    """Items, and what stands between them and their weights; whole numbers may be anything."""
    for mark in _WEIGHT_MARKS:
        if _share(pc.match_substring_regex(items, f"[^{mark}]{mark}{_WEIGHT}")) < 1:
            continue
        parts = pc.split_pattern(items, mark, max_splits=1, reverse=True)
        if _are_fractions(pc.list_element(parts, 1)):
            return pc.list_element(parts, 0), mark
    return items, None


def vector_separator(rows: pa.ChunkedArray) -> str | None:
    """Returns what parts numbers with fractions, as many in each row; else None."""
    for separator in ("|", ";", ",", " "):  # those that vectors are read with
        if _share(pc.match_substring(rows, separator)) < _LISTS:
            continue
        counts = pc.list_value_length(pc.split_pattern(rows, separator))
        if pc.count_distinct(counts).as_py() == 1 and _are_fractions(_items(rows, separator)):
            return separator
    return None


def length_of_all(present: pa.ChunkedArray, separator: str) -> int | None:
    """Returns how many items every row has, or None where they differ."""
    counts = pc.unique(pc.list_value_length(pc.split_pattern(present, separator)))
    return int(counts[0].as_py()) if len(counts) == 1 else None


def free_text(rows: pa.ChunkedArray, present: int, distinct: int) -> str:
    """Says why text is no id (sentences, or a title of its own in almost every row), or "".

    Args:
        rows: Some of them.
        present: Rows that are not missing, of all.
        distinct: Different texts, of all.
    """
    if present < _ROWS:
        return ""
    words = pc.mean(pc.count_substring_regex(rows, r"\S+").cast(pa.float64())).as_py()
    share = distinct / present
    if words >= _MANY_WORDS and share >= _DIFFERENT:
        return f"free text: {words:.0f} words a row, {100 * share:.0f} % of the rows different"
    letters = pc.mean(pc.utf8_length(rows).cast(pa.float64())).as_py()
    if _OWN <= share < 1 and (words >= _FEW_WORDS or letters >= _LONG):
        return f"almost every row has a text of its own ({100 * share:.0f} % are different)"
    return ""


def _items(rows: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    items = pc.utf8_trim_whitespace(pc.list_flatten(pc.split_pattern(rows, separator)))
    return items.filter(pc.not_equal(items, ""))


def _are_fractions(items: pa.ChunkedArray) -> bool:
    """Whether more than half of the items are fractions, which ids never are."""
    return len(items) > 0 and _share(pc.match_substring_regex(items.drop_null(), _FRACTION)) > 0.5


def _share(flags: pa.ChunkedArray) -> float:
    return float(pc.mean(flags.cast(pa.float64())).as_py() or 0.0)


def shown(separator: str) -> str:
    """Returns it as a comment shows it."""
    return {" ": "a blank", "\t": "a tab"}.get(separator, repr(separator))


_GLANCE = 200  # values looked at before all are
# In lower case; those that every reader takes for missing are in values/text.py
_WORDS = (
    "?", "-", "--", "---", ".", "..", "*", "n.a.", "n.a", "na.", "unknown", "unk", "missing", "nil",
    "not available", "not applicable", "undefined", "(null)", "(none)", "(blank)", "blank", "n/d",
    "nd", "k.a.", "tbd", "#null!", "#value!", "#div/0!", "#ref!", "#num!", "#name?", "none", "null",
    "0000-00-00", "0000-00-00 00:00:00", "00/00/0000", "00.00.0000",
)  # fmt: skip
_MOST_MISSING = 0.95  # share of rows that may be such words
_STRAY, _MOST_STRAY = 0.01, 3  # share of rows, and number, of other words among numbers
_STRAY_WORD = re.compile(r"[^\W\d_]{3,}[^\d]*")
_CODES = {"USD", "EUR", "GBP", "CHF", "JPY", "CNY", "RMB", "INR", "CAD", "AUD", "NZD", "SEK", "NOK",
          "DKK", "PLN", "CZK", "HUF", "BRL", "MXN", "ZAR", "TRY", "RUB", "KRW", "SGD", "HKD", "THB",
          "kr", "Kr", "zł", "Kč", "Ft", "Rs", "RM", "Lei", "lei", "TL"}  # fmt: skip
_MEASURES = {"%", "‰", "kg", "g", "mg", "lb", "lbs", "oz", "t", "km", "m", "cm", "mm", "mi", "ft",
             "in", "yd", "km²", "m²", "sqm", "sqft", "ha", "l", "L", "ml", "cl", "ms", "s", "sec",
             "secs", "min", "mins", "h", "hr", "hrs", "d", "day", "days", "hour", "hours", "minute",
             "minutes", "second", "seconds", "week", "weeks", "month", "months", "year", "years",
             "yrs", "kB", "KB", "MB", "GB", "TB", "bytes", "px", "pts", "kW", "kWh", "W", "V", "A",
             "hp", "bhp", "cc", "CC", "mph", "km/h", "kmph", "°C", "°F", "°", "pcs",
             "kcal"}  # fmt: skip
_MARKS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"),
          (",", "'"))  # decimal, thousands  # fmt: skip
_LEAST_UNITS = 0.5  # share of numbers that have the unit; all where it is one letter (2A)
_CODE = r"^([A-Za-z]+\d|[A-Za-z] )"  # m340, t 12: of a measure the number comes first
_FIRST_DIGITS = 30  # groups of three of which one at least should begin with 0


def missing_words(texts: pa.Array) -> list[str]:
    """Lists those of a column's distinct texts that are known to mean a missing value."""
    lower = pc.utf8_lower(texts)
    return texts.filter(pc.is_in(lower, pa.array(_WORDS, texts.type))).to_pylist()


def plain_numbers(texts: pa.Array) -> bool:
    """Returns whether all are numbers as programs write them, and finite."""
    settled = settle(pa.chunked_array([texts]))
    if is_text(settled.type) or pa.types.is_boolean(settled.type):
        return False
    return not pc.any(pc.is_inf(settled), min_count=0).as_py()


def stray_words(texts: pa.Array, counts_N: np.ndarray) -> list[str] | None:
    """Lists the few words among plain numbers, or None where there is more than a few.

    They are words of letters, at most 3, on at most 1 % of the rows: a code such as 2A is none.
    """
    looks = pc.match_substring_regex(texts, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    words_N = ~looks.to_numpy(zero_copy_only=False)
    few = 0 < words_N.sum() <= _MOST_STRAY and len(texts) > 20
    if not few or counts_N[words_N].sum() > _STRAY * counts_N.sum():
        return None
    words = texts.filter(pa.array(words_N)).to_pylist()
    rest = texts.filter(looks)
    return words if all(map(_STRAY_WORD.fullmatch, words)) and plain_numbers(rest) else None


def mostly_words(texts: pa.Array, counts_N: np.ndarray, words: list[str]) -> bool:
    """Returns whether words for missing fill the column."""
    is_word = pc.is_in(texts, pa.array(words, texts.type)).to_numpy(zero_copy_only=False)
    return bool(counts_N[is_word].sum() > _MOST_MISSING * counts_N.sum())


def number_keys(texts: pa.Array) -> dict[str, Any] | None:
    """Returns the keys by which all of these distinct texts are numbers, or None.

    Example:
        >>> number_keys(pa.array(["1.234,50 €", "12,00 €"], pa.large_string()))
        {'decimal': ',', 'thousands': '.', 'unit': '€'}
    """
    glance = tidied(pa.chunked_array([texts.slice(0, _GLANCE)]))
    if not pc.all(pc.match_substring_regex(glance, r"\d")).as_py():
        return None
    units = {re.sub(r"[\d.,'()+\- ]+", " ", cell).strip() for cell in glance.to_pylist()} - {""}
    if len(units) > 1 or not all(map(_is_unit, units)):
        return None
    unit = next(iter(units), None)
    if unit is not None:
        with_unit = pc.match_substring(glance, unit)
        share = pc.mean(with_unit.cast(pa.float64())).as_py()
        if share < (1 if unit.isalpha() and len(unit) == 1 else _LEAST_UNITS):
            return None
        if unit in _MEASURES and pc.any(pc.match_substring_regex(glance, _CODE)).as_py():
            return None
    for decimal, thousands in _MARKS:
        for some in (glance, pa.chunked_array([texts])):
            if parse_written(some, decimal, thousands, unit).null_count:
                break
        else:
            return _keys(texts, decimal, thousands, unit)
    return None


def _keys(
    texts: pa.Array, decimal: str, thousands: str | None, unit: str | None
) -> dict[str, Any] | None:
    """Returns the keys of a reading that all texts allow; None where they are lists of ids."""
    texts = tidied(pa.chunked_array([texts]))
    if (decimal, thousands) == (".", None):
        # € 1.234 beside € 999: three digits follow each dot, and some numbers have none
        dots = pc.match_substring(texts, ".")
        groups = pc.match_substring_regex(texts, r"^\D*[1-9]\d{0,2}(\.\d{3})*[^\d.]*$")
        some = pc.any(dots).as_py() and not pc.all(dots).as_py()
        if some and pc.all(groups).as_py():
            decimal, thousands = ",", "."
    if thousands in (",", " ") and unit is None and not _has_zero_groups(texts, thousands):
        return None
    keys = {"decimal": decimal} if decimal != "." else {}
    keys |= {k: v for k, v in (("thousands", thousands), ("unit", unit)) if v is not None}
    return keys or None  # 00501 and numbers beyond 64 bits are no numbers by themselves


def _has_zero_groups(texts: pa.ChunkedArray, mark: str) -> bool:
    """Whether some groups are 005 or 050, as in thousands and never in lists of ids."""
    groups = pc.sum(pc.count_substring_regex(texts, rf"{mark}\d\d\d")).as_py()
    decimals = pc.any(pc.match_substring_regex(texts, r"[.,]\d{1,2}$")).as_py()
    if groups < _FIRST_DIGITS or decimals:
        return True
    return bool(pc.any(pc.match_substring_regex(texts, rf"{mark}0\d\d")).as_py())


def _is_unit(text: str) -> bool:
    """A currency or a measure: `user 17` is an id."""
    letters = "".join(c for c in text if unicodedata.category(c) != "Sc")
    if len(letters) < len(text):
        return len(text) - len(letters) == 1 and len(letters) <= 3  # $, US$, R$
    return text in _CODES or text in _MEASURES


_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY_NAME = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
# What a date looks like, and how it may be read; {0} is the mark between its numbers
_DATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\d{4}([-/. ])\d{1,2}\1\d{1,2}", ("%Y{0}%m{0}%d",)),
    (r"\d{1,2}([-/. ])\d{1,2}\1\d{4}", ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y")),
    (r"\d{1,2}([/.])\d{1,2}\1\d{2}", ("%d{0}%m{0}%y", "%m{0}%d{0}%y")),
    (r"\d{2}(-)\d{2}-\d{2}", ("%d-%m-%y", "%m-%d-%y", "%y-%m-%d")),
    (r"\d{8}()", ("%Y%m%d",)),
    (r"\d{14}()", ("%Y%m%d%H%M%S",)),
    (rf"\d{{1,2}}([-/ ]?){_MONTH}\1\d{{4}}", ("%d{0}%b{0}%Y", "%d{0}%B{0}%Y")),
    (rf"\d{{1,2}}([-/ ]){_MONTH}\1\d{{2}}", ("%d{0}%b{0}%y",)),
    (rf"\d{{1,2}}\. ()(?:{_MONTH}) \d{{4}}", ("%d. %b %Y", "%d. %B %Y")),
    (rf"{_MONTH}([- ])\d{{1,2}}, ?\d{{4}}", ("%b{0}%d, %Y", "%B{0}%d, %Y", "%b{0}%d,%Y")),
    (rf"{_MONTH}([-/ ])\d{{1,2}}\1\d{{4}}", ("%b{0}%d{0}%Y", "%B{0}%d{0}%Y")),
    (rf"{_MONTH}(\. )\d{{1,2}}, \d{{4}}", ("%b. %d, %Y",)),
    (rf"\d{{4}}([-/ ]){_MONTH}\1\d{{1,2}}", ("%Y{0}%b{0}%d", "%Y{0}%B{0}%d")),
)
_TIME = re.compile(
    r"(?P<mark>T|, | at | - |[ :])"
    r"(?P<hour>\d{1,2}):\d\d(?P<second>:\d\d(?P<fraction>\.\d{1,9})?)?"
    r"(?P<half> ?[AaPp]\.?[Mm]\.?)?(?P<zone> ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
)
# Those in which the year comes behind the time
_WHOLE = ("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S UTC %Y")
_FIRST_DATES = 1000
_YEARS = ("1900-01-01", "2101-01-01")
_DATES_SHARE = 0.9  # of the rows, to be called dates though no one format reads them


def datetime_formats(texts: pa.Array) -> list[str]:
    """Lists the formats that read all of a column's distinct texts, the day first where both do.

    Where two read every text as the same day, one of them is enough.

    Example:
        >>> datetime_formats(pa.array(["24/11/2023", "01/02/2023"], pa.large_string()))
        ['%d/%m/%Y']
        >>> datetime_formats(pa.array(["04/11/2023", "01/02/2023"], pa.large_string()))
        ['%d/%m/%Y', '%m/%d/%Y']
    """
    first = texts[0].as_py()
    glance = texts.slice(0, _FIRST_DATES)
    likely = [form for form in _candidates(first) if read_as(glance, form) is not None]
    found: list[tuple[str, np.ndarray]] = []
    for form in likely:
        micros_N = read_as(texts, form)
        if micros_N is not None and not any(np.array_equal(micros_N, m) for _, m in found):
            found.append((form, micros_N))
    return [form for form, _ in found]


def look_like_dates(texts: pa.Array) -> bool:
    """Returns whether most of them begin with a date of some form."""
    # RE2 has no backreferences: any mark will do
    forms = [
        pattern.replace(r"\1", "[-/. ]?") for pattern, _ in _DATES if not pattern.endswith("()")
    ]
    pattern = rf"^(?:{_DAY_NAME},? )?(?:{'|'.join(forms)})(?:[T ,].*)?$"
    share = pc.mean(pc.match_substring_regex(texts, pattern).cast(pa.float64())).as_py()
    return bool(share is not None and share >= _DATES_SHARE)


def read_and_unread(texts: pa.Array) -> list[str]:
    """Returns a text that the first one's best format reads, and one that it does not read."""
    column = pa.chunked_array([texts])
    found = [parse_format(column, form) for form in _candidates(texts[0].as_py())]
    if not found:
        return texts.slice(0, 2).to_pylist()
    best = min(found, key=lambda micros: micros.null_count)
    parts = (texts.filter(pc.is_valid(best)), texts.filter(pc.is_null(best)))
    return [text for part in parts for text in part.slice(0, 1).to_pylist()]


def _candidates(text: str) -> list[str]:
    """Formats that a text may have, by what it looks like."""
    if re.match(rf"{_DAY_NAME} {_MONTH} ", text):
        return list(_WHOLE)
    name = re.match(rf"({_DAY_NAME})(,? )", text)
    prefixes = [f"{day}{name[2]}" for day in ("%a", "%A")] if name else [""]
    rest = text[name.end() :] if name else text
    found = []
    for pattern, forms in _DATES:
        date = re.match(rf"{pattern}(?!\d)", rest)
        time = None if date is None else _time_format(rest[date.end() :])
        if date is not None and time is not None:
            found += [f"{p}{form.format(date[1])}{time}" for p in prefixes for form in forms]
    return found


def _time_format(text: str) -> str | None:
    """The format of what stands behind a date: nothing, a time, a zone; None if it is neither."""
    if not text:
        return ""
    time = _TIME.fullmatch(text)
    if time is None:
        return None
    form = f"{time['mark']}{'%I' if time['half'] else '%H'}:%M"
    form += ("" if time["second"] is None else ":%S") + ("" if not time["fraction"] else ".%f")
    if time["half"]:
        form += f"{' ' * time['half'].startswith(' ')}%p"
    zone = time["zone"] or ""
    blank, zone = " " * zone.startswith(" "), zone.strip()
    return form + blank + (zone if zone in ("UTC", "GMT", "") else "%z")


def read_as(texts: pa.Array, form: str) -> np.ndarray | None:
    """Returns microseconds where every text is a datetime of our times, else None."""
    micros = parse_format(pa.chunked_array([texts]), form)
    if micros.null_count:
        return None
    micros_N = micros.to_numpy()
    low, beyond = (int(np.datetime64(day, "us").astype(np.int64)) for day in _YEARS)
    return micros_N if ((micros_N >= low) & (micros_N < beyond)).all() else None


_ENOUGH_ROWS = 50  # fewer say nothing
_VALUES = 12  # fewer different values are names, and -1 is one of them
_SHARE = 0.01  # of the rows, for a number far outside
_SHARE_OF_MINUS_1 = 0.05
_TIMES = 3  # as frequent as its neighbour, for the only negative number
_LIMITS = {-(2.0**15), 2.0**15 - 1, -(2.0**31), 2.0**31 - 1, 2.0**32 - 1, -(2.0**63), 2.0**63}
_MOST = 3


def sentinels(numbers_N: np.ndarray) -> list[float]:
    """Lists the numbers of a column that stand for missing values, lowest first.

    Such a number is the lowest or the highest; it is all nines, eights or sevens (two digits or
    more, a fraction cut off), or the limit of an integer's type; 1 % of the rows have it; and its
    distance to the next number is more than the others are apart (from their 1st to their 99th
    percentile). A negative one also counts where no other number is negative and three times as
    many rows have it as have the next number; so does -1 where all are whole, and 5 % have it.

    Args:
        numbers_N: float64 [N], NaN where missing.

    Example:
        >>> ages = np.array([*range(18, 90)] * 3 + [-999.0] * 9)
        >>> sentinels(ages), sentinels(ages[:216])
        ([-999.0], [])
    """
    present = numbers_N[np.isfinite(numbers_N)]
    if len(present) < _ENOUGH_ROWS or not any(map(_is_filler, (present.min(), present.max()))):
        return []
    values, counts = np.unique(present, return_counts=True)
    low, high = 0, len(values)
    found: list[float] = []
    for _ in range(_MOST):
        if high - low <= _VALUES:
            break
        if _is_one(values[low:high], counts[low:high], len(present)):
            found.append(float(values[low]))
            low += 1
        elif _is_one(-values[low:high][::-1], counts[low:high][::-1], len(present), -1):
            high -= 1
            found.append(float(values[high]))
        else:
            break
    return sorted(found)


def _is_one(values: np.ndarray, counts: np.ndarray, rows: int, sign: int = 1) -> bool:
    """Whether the first of ascending values is a sentinel; `sign` −1: they were negated."""
    first, others = values[0], values[1:]
    if not _is_filler(sign * first):
        return False
    if sign == 1 and first < 0 <= others[0]:
        share = _SHARE_OF_MINUS_1 if first == -1 else _SHARE
        whole = first != -1 or np.array_equal(others, np.floor(others))
        if whole and counts[0] >= max(share * rows, _TIMES * counts[1]):
            return True
    if first == -1:
        return False
    total = np.cumsum(counts[1:])
    spread = (
        others[np.searchsorted(total, 0.99 * total[-1])]
        - others[np.searchsorted(total, 0.01 * total[-1])]
    )
    return bool(counts[0] >= _SHARE * rows and others[0] - first > spread)


def _is_filler(value: float) -> bool:
    if value == -1 or value in _LIMITS:
        return True
    digits = str(int(abs(value)))
    return len(digits) >= 2 and digits in (d * len(digits) for d in "789")


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
    written = _written(column) if feature.text_columns else ""
    words = keys.get("missing_values", [])
    listed = ", ".join(map(repr, words[:_SHOWN]))
    missing = f"{listed} {'mean' if len(words) > 1 else 'means'} missing" if words else ""
    said = "; ".join(filter(None, (written, missing)))
    return of_numbers(name, numbers_N, keys=keys, said=said)


def _datetimes(name: str, column: pa.ChunkedArray, keys: list[dict[str, Any]]) -> ColumnProfile:
    """Returns one way to read datetimes, or two between which a person has to choose."""
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
        said=_written(column) if form else "",
        no_input=why,
        offered=tuple(keys) if two else (),
    )


def _of_lists(
    name: str, column: pa.ChunkedArray, present: pa.ChunkedArray, distinct: int
) -> ColumnProfile:
    profile = profile_column(name, column)
    if profile.vector is not None:
        return profile
    rows = sampled(present)
    brackets = in_brackets(rows)
    if brackets == "lists":
        keys = {"format": "json"}
        return replace(profile, nature="list", keys=keys, said="lists in brackets, in text")
    if brackets == "nested":
        return _left_out(name, column, "objects, or lists of lists, in text; flatten them")
    mark = vector_separator(rows)
    length = length_of_all(present, mark) if mark is not None else None
    if length is not None:
        return replace(profile, nature="vector", vector=VectorFacts(length))
    if brackets == "fractions" or mark is not None:
        why = "numbers with fractions, which are no ids, nor as many in each row as in a vector"
        return _left_out(name, column, why)
    found = separators_of(rows)
    if found is not None:
        separator, mark = found
        keys = {"separator": separator} if separator != "|" else {}
        said = f"text with {shown(separator)} between items"
        if mark is not None:
            keys["weight_separator"] = mark
            said += f", and {shown(mark)} before their weights"
        return replace(profile, separator=separator, keys=keys, said=said)
    why = free_text(rows, len(present), distinct)
    return replace(profile, no_input=why)


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


def _written(column: pa.ChunkedArray) -> str:
    return f"written as {present_text(digits_of(column)).drop_null()[0].as_py()!r}"


def _left_out(name: str, column: pa.ChunkedArray, why: str) -> ColumnProfile:
    return replace(profile_column(name, column), no_input=why)
