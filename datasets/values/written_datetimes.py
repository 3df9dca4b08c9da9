"""Datetimes in text of a given format, such as 24/11/2023 13:05."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa

from mmoe.datasets.values.arrow import is_text, pc

# Directives of formats without names: those that are needed, and those there may be
_DAY = {"%Y", "%m", "%d"}
_FAST = ((_DAY, _DAY | {"%H", "%M", "%S"}), (_DAY | {"%I", "%p"}, _DAY | {"%I", "%p", "%M", "%S"}))


def parse_format(values: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """Parses text as `form` says, int64 microseconds since 1970 in UTC; null where it does not.

    Strictly: a 31st of February, a further word or a missing hour is no datetime. What says no zone
    is UTC.

    Args:
        values: large_string [N].
        form: Directives of strptime, such as %d.%m.%Y.

    Example:
        >>> cells = pa.chunked_array([pa.array(["2.1.1970", "31.2.1970", None], "large_string")])
        >>> parse_format(cells, "%d.%m.%Y").to_pylist()
        [86400000000, None, None]
    """
    cells = values.combine_chunks()
    micros = _of_digits(cells, form) if not cells.null_count else None
    if micros is not None:
        return pa.chunked_array([micros])
    coded = cells.dictionary_encode()  # each text once: days come back
    micros = _of_digits(coded.dictionary, form)
    if micros is not None:
        return pa.chunked_array([micros.take(coded.indices)])
    texts = pd.Series(coded.dictionary.to_pylist(), dtype=object)
    found = pd.to_datetime(texts, format=form, errors="coerce", utc=True).dt.as_unit("us")
    micros = pa.array(found.to_numpy("M8[us]").astype(np.int64), mask=found.isna().to_numpy())
    return pa.chunked_array([micros.take(coded.indices)])


def _of_digits(texts: pa.Array, form: str) -> pa.Array | None:
    """The same many times as fast, where there are no names, and every text is a datetime."""
    pieces = re.split("(%.)", form)
    widths = {name: 4 if name == "%Y" else 2 for name in pieces[1::2]}
    once = len(widths) == len(pieces) // 2
    if not once or not any(wanted <= set(widths) <= parts for wanted, parts in _FAST):
        return None
    length = sum(widths.get(piece, len(piece)) for piece in pieces)
    cells_NL = _cells(texts, length)
    if cells_NL is None:
        for _ in range(2):  # 1/2/2023: what stands beside a match is not matched again
            texts = pc.replace_substring_regex(texts, r"(^|\D)(\d)(\D|$)", r"\10\2\3")
        cells_NL = _cells(texts, length)
    if cells_NL is None:
        return None
    none_N = np.zeros(len(texts), np.int64)
    numbers, at = {}, 0
    for piece in pieces:
        width = widths.get(piece, len(piece))
        read_N = _number(cells_NL[:, at : at + width], piece)
        if read_N is None:
            return None
        numbers[piece], at = read_N, at + width
    if "%I" in numbers:
        if ((numbers["%I"] < 1) | (numbers["%I"] > 12)).any():
            return None
        numbers["%H"] = numbers["%I"] % 12 + 12 * numbers["%p"]
    parts = ("%Y", "%m", "%d", "%H", "%M", "%S")
    return _micros(*(numbers.get(part, none_N) for part in parts))


def _cells(texts: pa.Array, length: int) -> np.ndarray | None:
    """uint8 [N, length], where all have this length."""
    texts = texts.cast(pa.large_string())
    sizes = pc.min_max(pc.binary_length(texts)).as_py()
    if not sizes["min"] == sizes["max"] == length:
        return None
    _, offsets, data = texts.buffers()
    first = int(np.frombuffer(offsets, np.int64)[texts.offset])
    return np.frombuffer(data, np.uint8, len(texts) * length, first).reshape(-1, length)


def _number(part_NW: np.ndarray, piece: str) -> np.ndarray | None:
    """What a directive reads, 1 for PM; None where it does not, or a mark is another one."""
    if piece == "%p":
        upper_NW = part_NW & 0xDF
        is_pm_N = upper_NW[:, 0] == ord("P")
        good_N = (is_pm_N | (upper_NW[:, 0] == ord("A"))) & (upper_NW[:, 1] == ord("M"))
        return is_pm_N.astype(np.int64) if good_N.all() else None
    if not piece.startswith("%"):
        mark = np.frombuffer(piece.encode(), np.uint8)
        same = mark.shape == part_NW.shape[1:] and (part_NW == mark).all()
        return np.zeros(len(part_NW), np.int64) if same else None
    digits_NW = part_NW - np.uint8(ord("0"))
    if (digits_NW > 9).any():
        return None
    return digits_NW.astype(np.int64) @ 10 ** np.arange(part_NW.shape[1])[::-1]


def _micros(
    year_N: np.ndarray,
    month_N: np.ndarray,
    day_N: np.ndarray,
    hour_N: np.ndarray,
    minute_N: np.ndarray,
    second_N: np.ndarray,
) -> pa.Array | None:
    """Microseconds since 1970; None where a part is too large, or 0 where it begins with 1."""
    parts = ((month_N - 1, 12), (hour_N, 24), (minute_N, 60), (second_N, 60))
    if any(((part_N < 0) | (part_N >= most)).any() for part_N, most in parts):
        return None
    months_N = ((year_N - 1970) * 12 + month_N - 1).astype("M8[M]")
    lengths_N = ((months_N + 1).astype("M8[D]") - months_N.astype("M8[D]")).astype(np.int64)
    if ((day_N < 1) | (day_N > lengths_N) | (year_N < 1)).any():
        return None
    days_N = months_N.astype("M8[D]").astype(np.int64) + day_N - 1
    return pa.array((((days_N * 24 + hour_N) * 60 + minute_N) * 60 + second_N) * 1_000_000)


def digits_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns text as it is, and whole numbers such as 20231124 as text; null where missing."""
    if is_text(column.type):
        return column
    if not pa.types.is_integer(column.type):  # whole numbers with gaps, as pandas has them
        column = column.cast(pa.float64(), safe=False)
        whole = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), 2.0**53))
        column = pc.if_else(pc.fill_null(whole, False), column, pa.scalar(None, pa.float64()))
        column = column.cast(pa.int64())
    return column.cast(pa.large_string())


def has_hours(form: str) -> bool:
    """Returns whether a format says a time of day, not a day alone."""
    return any(directive in form for directive in ("%H", "%I"))
