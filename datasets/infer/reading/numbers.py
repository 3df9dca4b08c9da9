"""How numbers in text are written: 1,234.50 or 1.234,50, with a unit, with words for missing."""

import re
import unicodedata
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.datasets.values.arrow import is_text, pc
from mmoe.datasets.values.columns import parse_written, tidied
from mmoe.datasets.values.text import settle

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
    """Of a reading that all texts allow; None where they are rather lists of ids."""
    texts = tidied(pa.chunked_array([texts]))
    if (decimal, thousands) == (".", None) and _part_thousands(texts):
        decimal, thousands = ",", "."
    if thousands in (",", " ") and unit is None and not _has_zero_groups(texts, thousands):
        return None
    keys = {"decimal": decimal} if decimal != "." else {}
    keys |= {k: v for k, v in (("thousands", thousands), ("unit", unit)) if v is not None}
    return keys or None  # 00501 and numbers beyond 64 bits are no numbers by themselves


def _part_thousands(texts: pa.ChunkedArray) -> bool:
    """€ 1.234 beside € 999: three digits follow each dot, and some numbers have none."""
    dots = pc.match_substring(texts, ".")
    groups = pc.match_substring_regex(texts, r"^\D*[1-9]\d{0,2}(\.\d{3})*[^\d.]*$")
    some = pc.any(dots).as_py() and not pc.all(dots).as_py()
    return bool(some and pc.all(groups).as_py())


def _has_zero_groups(texts: pa.ChunkedArray, mark: str) -> bool:
    """Of many thousands some end in 005 or 050; of many lists of ids such as 101,202 none does."""
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
