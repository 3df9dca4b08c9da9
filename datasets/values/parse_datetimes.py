"""Parses ISO 8601 text, each cell by itself: what stands in other rows plays no part."""

import pyarrow as pa

from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import pc

DAY_LENGTH = len("2024-01-31")
_ZONE = r"[ T]\d\d.*?\s?(Z|[+-]\d\d(:?\d\d)?)$"
_LONGEST_PLAIN = len("2024-01-31T12:00:00")


def present_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Trims text; missing words, and pandas's NaT, become null."""
    trimmed = text.blank_to_null(pc.utf8_trim_whitespace(column))
    return pc.if_else(pc.equal(trimmed, "NaT"), pa.scalar(None, trimmed.type), trimmed)


def parse_iso(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses datetimes in text to int64 microseconds since 1970, UTC; null where it is none.

    Day alone, or with hours, minutes, seconds and fractions (beyond microseconds cut off); `T` or a
    blank before the time, `Z` or an offset behind it. Without an offset it is UTC.

    Example:
        >>> parse_iso(pa.chunked_array([["1970-01-02", "1970-01-01 01:00+01", "noon"]])).to_pylist()
        [86400000000, 0, None]
    """
    if (pc.max(pc.binary_length(values)).as_py() or 0) > _LONGEST_PLAIN:
        values = pc.replace_substring_regex(values, r"(:\d\d)[.,](\d{1,6})\d*", r"\1.\2")
    zoned = pc.match_substring_regex(values, _ZONE)
    none = pa.scalar(None, values.type)
    plain = _cast(pc.if_else(zoned, none, values), pa.timestamp("us"))
    if not pc.any(zoned, min_count=0).as_py():
        return plain
    tight = pc.replace_substring_regex(values, r"\s+(Z|[+-]\d\d(:?\d\d)?)$", r"\1")
    return pc.coalesce(plain, _cast(pc.if_else(zoned, tight, none), pa.timestamp("us", "UTC")))


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """int64, null where a cell cannot be read: Arrow stops at the first, so they go one by one."""
    found = text.cast_or_none(values, kind)
    if found is None:
        cells = [_cast_one(cell, kind) for cell in values]
        found = pa.chunked_array([pa.array(cells, pa.int64())])
    return found.cast(pa.int64())


def _cast_one(cell: pa.Scalar, kind: pa.DataType) -> int | None:
    try:
        return cell.cast(kind).cast(pa.int64()).as_py()
    except pa.ArrowInvalid:
        return None
