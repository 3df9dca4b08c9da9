"""One text for one value: datetimes and decimals as they are written in files of any kind."""

import pyarrow as pa

from mmoe.datasets.values.arrow import pc

_DATETIME = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|[+-]\d\d:?\d\d))?$"
_SHORTEST_MOMENT = len("2025-01-01 00:00")
_ZERO_OFFSET = r" ?(Z|[+-]00:?00)$"
_OFFSET = r" ?[+-]\d\d:?\d\d$"


def datetimes_to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Writes timestamps as `2025-01-01 00:00:32.5`, midnight as its day, zones as Z.

    Down to the microsecond: what is finer is cut off.

    Example:
        >>> seconds = pa.chunked_array([pa.array([0, 32], pa.timestamp("s"))])
        >>> datetimes_to_text(seconds).to_pylist()
        ['1970-01-01', '1970-01-01 00:00:32']
    """
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    written = micros.cast(pa.timestamp("us")).cast(pa.large_string())  # what has a zone, in UTC
    if column.type.tz is not None:
        written = pc.replace_substring_regex(written, "$", "Z")
    return _shorten(written)


def canonical_datetimes(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Rewrites text that is an ISO 8601 datetime as `datetimes_to_text` does.

    Example:
        >>> values = pa.chunked_array([["2025-01-01T00:00:32.500", "2025-01-01 00:00:00", "2 T"]])
        >>> canonical_datetimes(values).to_pylist()
        ['2025-01-01 00:00:32.5', '2025-01-01', '2 T']
    """
    if not pc.any(pc.greater_equal(pc.binary_length(values), _SHORTEST_MOMENT)).as_py():
        return values
    is_datetime = pc.fill_null(pc.match_substring_regex(values, _DATETIME), False)
    if not pc.any(is_datetime).as_py():
        return values
    found = values.filter(is_datetime)
    found = pc.replace_substring_regex(found, r"^(.{10})T", r"\1 ")
    found = pc.replace_substring_regex(found, r"^(.{10} \d\d:\d\d)($|[^:\d])", r"\1:00\2")
    found = pc.replace_substring_regex(found, r"[.,](\d{1,6})\d*", r".\1")
    found = pc.replace_substring_regex(found, _ZERO_OFFSET, "Z")
    return _put(values, is_datetime, _shorten(_to_utc(found)))


def is_no_moment(text: str) -> bool:
    """Returns whether `canonical_datetimes` leaves a text of ASCII as it is, at a glance."""
    return len(text) < _SHORTEST_MOMENT or text[4] != "-"


def decimals_to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Writes decimals without zeros at the end: 1.00 as `1`, 1.50 as `1.5`.

    Example:
        >>> prices = pa.chunked_array([pa.array(["1.00", "1.50", "20"]).cast(pa.decimal128(9, 2))])
        >>> decimals_to_text(prices).to_pylist()
        ['1', '1.5', '20']
    """
    wide = column.cast(pa.decimal256(76, max(column.type.scale, 0)))
    floor = pc.floor(wide)
    digits = floor.cast(pa.decimal256(76, 0)).cast(pa.large_string())
    fractions = pc.replace_substring_regex(
        wide.cast(pa.large_string()), r"(\.\d*[1-9])0+($|E)", r"\1\2"
    )
    return pc.if_else(pc.equal(wide, floor), digits, fractions)


def _shorten(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """No zeros behind the seconds; a midnight without a zone is a day, as pandas writes it."""
    values = pc.replace_substring_regex(values, r"\.0+(Z?)$", r"\1")
    values = pc.replace_substring_regex(values, r"(\.\d*[1-9])0+(Z?)$", r"\1\2")
    return pc.replace_substring_regex(values, r" 00:00:00$", "")


def _to_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Datetimes with an offset (+01:00) as those of UTC; a day that there is not stays as it is."""
    shifted = pc.match_substring_regex(values, _OFFSET)
    if not pc.any(shifted).as_py():
        return values
    found = pc.replace_substring_regex(values.filter(shifted), r" ([+-])", r"\1")
    try:
        moved = datetimes_to_text(found.cast(pa.timestamp("us", "UTC")))
    except pa.ArrowInvalid:  # one of them is none; the others must not depend on it
        moved = pa.chunked_array([[_one_to_utc(value) for value in found]], values.type)
    return _put(values, shifted, moved)


def _one_to_utc(value: pa.Scalar) -> str:
    try:
        one = pa.chunked_array([pa.array([value]).cast(pa.timestamp("us", "UTC"))])
    except pa.ArrowInvalid:
        return value.as_py()
    return datetimes_to_text(one)[0].as_py()


def _put(
    values: pa.ChunkedArray, where: pa.ChunkedArray, found: pa.ChunkedArray
) -> pa.ChunkedArray:
    """`values` with those of `found`, in order, where `where` is true."""
    whole, mask, new = (array.combine_chunks() for array in (values, where, found))
    return pa.chunked_array([pc.replace_with_mask(whole, mask, new.cast(whole.type))])
