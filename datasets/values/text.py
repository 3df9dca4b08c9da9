"""Text to numbers: which words mean "missing", and what a text column holds."""

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa

from mmoe.config.data import MISSING_WORDS
from mmoe.datasets.values.arrow import is_text, pc

_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_EXACT = 2.0**53  # whole numbers below are exact in float64
_WITH_POWER = r"^[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+$|^[+-]?\.0+$"
_GLANCE = 200  # values looked at before whole columns are tried


def is_missing(value: str) -> bool:
    """Returns whether a cell is empty, or a word for that."""
    return not value or value in MISSING_WORDS


def blank_to_null(values: pa.ChunkedArray, words: Sequence[str] = MISSING_WORDS) -> pa.ChunkedArray:
    """Turns empty text, and words that mean "missing", into null."""
    missing = pc.is_in(values, pa.array(["", *words], values.type))
    return pc.if_else(missing, pa.scalar(None, values.type), values)


def settle(values: pa.ChunkedArray, words: Sequence[str] = MISSING_WORDS) -> pa.ChunkedArray:
    """Casts text to the narrowest type that keeps every value: bool, int64, float64, text.

    Integers that would not print back the same (zip code 00501, +1) keep the column text, and so
    does 00501 where others are written as 1e+05. Dates stay text: ISO dates sort and compare as
    they are.

    Args:
        values: large_string [N].
        words: Those that mean "missing".

    Returns:
        The same values as bool, int64, float64 or large_string; missing words are null in the
        first three, only "" is in the last.
    """
    glance = blank_to_null(values.slice(0, _GLANCE), words)
    if cast_or_none(glance, pa.float64()) is None and to_booleans(glance) is None:
        return empty_to_null(values)
    settled = _settle_numbers(values)  # the common case needs no search for missing words
    if settled is None:
        blanked = blank_to_null(values, words)
        settled = _settle_numbers(blanked)
        settled = to_booleans(blanked) if settled is None else settled
    return empty_to_null(values) if settled is None or is_text(settled.type) else settled


def _settle_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """int64 or float64; the text itself where numbers would not keep it; None if no numbers."""
    whole = cast_or_none(values, pa.int64())
    if whole is not None:
        return whole if is_canonical(values) else values
    real = cast_or_none(values, pa.float64())
    lossy = real is not None and (loses_digits(values, real) or loses_zeros(values, real))
    return values if lossy else real


def is_canonical(values: pa.ChunkedArray) -> bool:
    """Returns whether all numbers are written plainly, not as 007, -0 or 0x1F."""
    padded = pc.and_(pc.starts_with(values, "0"), pc.greater(pc.binary_length(values), 1))
    odd = pc.or_(padded, pc.starts_with(values, "-0"))
    return not pc.any(odd, min_count=0).as_py()


def to_reals(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses text to float64, null where it is missing or no number."""
    blanked = blank_to_null(values)
    real = cast_or_none(blanked, pa.float64())
    if real is not None:
        return real
    trimmed = _flags_to_digits(pc.utf8_trim_whitespace(blanked))
    # Arrow stops at the first bad value, so only what looks like a number is cast.
    looks = pc.match_substring_regex(
        trimmed, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|(?i)^[+-]?inf(inity)?$"
    )
    return pc.if_else(looks, trimmed, pa.scalar(None, values.type)).cast(pa.float64())


def to_integers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses text to int64 (7, 007, 7.0, 7e+00, true), null where missing or no integer.

    A value is what it is on its own, whatever stands beside it.
    """
    blanked = blank_to_null(values)
    whole = cast_or_none(blanked, pa.int64())
    if whole is not None and not pc.any(_is_hexadecimal(blanked), min_count=0).as_py():
        return whole
    text = _flags_to_digits(pc.utf8_trim_whitespace(blanked))
    text = pc.replace_substring_regex(text, r"(\d)\.0*$", r"\1")
    text = pc.replace_substring_regex(text, r"^\+", "")
    short = pc.match_substring_regex(text, r"^-?\d{1,18}$")
    result = pc.if_else(short, text, pa.scalar(None, values.type)).cast(pa.int64())
    # 19 digits may or may not fit; they are rare here, so Python settles them one by one.
    long = pc.match_substring_regex(text, r"^-?0*[1-9]\d{18}$")
    if pc.any(long).as_py():
        result = pc.coalesce(result, _long_integers(text, long))
    powers = pc.match_substring_regex(text, _WITH_POWER)  # as R and spreadsheets write 100000
    return pc.coalesce(result, _of_powers(text, powers)) if pc.any(powers).as_py() else result


def to_booleans(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Parses text to bool where every value is true or false (or null), else None."""
    true = pc.is_in(values, pa.array(_TRUE, values.type))
    known = pc.or_(true, pc.is_in(values, pa.array(_FALSE, values.type)))
    if not pc.all(pc.or_(known, pc.is_null(values)), min_count=0).as_py():
        return None
    return pc.if_else(pc.is_null(values), pa.scalar(None, pa.bool_()), true)


def _flags_to_digits(values: pa.ChunkedArray) -> pa.ChunkedArray:
    for words, digit in ((_TRUE, "1"), (_FALSE, "0")):
        is_word = pc.is_in(values, pa.array(words, values.type))
        values = pc.if_else(is_word, pa.scalar(digit, values.type), values)
    return values


def _of_powers(text: pa.ChunkedArray, powers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Those of 1e+05, 1.5E3 and .0 that are whole and below 2⁵³; beyond, digit by digit."""
    reals = pc.if_else(powers, text, pa.scalar(None, text.type)).cast(pa.float64())
    whole = pc.and_(pc.equal(reals, pc.floor(reals)), pc.less(pc.abs(reals), _EXACT))
    result = pc.if_else(whole, reals, pa.scalar(None, pa.float64())).cast(pa.int64())
    large = pc.and_(pc.greater_equal(pc.abs(reals), _EXACT), pc.less_equal(pc.abs(reals), 2.0**63))
    if pc.any(large).as_py():
        result = pc.coalesce(result, _long_integers(text, large))
    return result


def _is_hexadecimal(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Such as 0x1F, which Arrow takes for 31."""
    return pc.match_substring_regex(values, r"^-?0[xX]")


def _long_integers(text: pa.ChunkedArray, long: pa.ChunkedArray) -> pa.ChunkedArray:
    chosen = pc.if_else(long, text, pa.scalar(None, text.type)).to_pylist()
    numbers = [None if value is None else Decimal(value) for value in chosen]
    fits = [
        int(n) if n is not None and -(2**63) <= n < 2**63 and n == n.to_integral_value() else None
        for n in numbers
    ]
    return pa.chunked_array([pa.array(fits, pa.int64())])


def cast_or_none(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Casts the values to `kind`, or returns None where one of them cannot be."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def loses_digits(text: pa.ChunkedArray, real: pa.ChunkedArray) -> bool:
    """Returns whether ids of many digits parse as float64, but no longer differ."""
    if not pc.any(pc.greater_equal(pc.abs(real), 2.0**53)).as_py():
        return False
    return bool(pc.any(pc.match_substring_regex(text, r"^-?\d{16,}$")).as_py())


def loses_zeros(text: pa.ChunkedArray, real: pa.ChunkedArray) -> bool:
    """Returns whether ids such as 00501 stand among whole numbers written as 1e+05 or 7.0.

    Measurements may be padded: beside a fraction, 007 is 7.
    """
    if not is_whole(real):
        return False
    return bool(pc.any(pc.match_substring_regex(text, r"^[+-]?0\d+$"), min_count=0).as_py())


def is_whole(real: pa.ChunkedArray) -> bool:
    """Returns whether no number is a fraction."""
    return bool(pc.all(pc.equal(real, pc.floor(real)), min_count=0).as_py())


def empty_to_null(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Turns empty text into null."""
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
