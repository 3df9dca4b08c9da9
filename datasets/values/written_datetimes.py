"""Datetimes in text of a given format, such as 24/11/2023 13:05."""

import numpy as np
import pandas as pd
import pyarrow as pa

from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.plain import is_text


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
    coded = values.combine_chunks().dictionary_encode()  # each text once: days come back
    texts = pd.Series(coded.dictionary.to_pylist(), dtype=object)
    found = pd.to_datetime(texts, format=form, errors="coerce", utc=True).dt.as_unit("us")
    micros = pa.array(found.to_numpy("M8[us]").astype(np.int64), mask=found.isna().to_numpy())
    return pa.chunked_array([micros.take(coded.indices)])


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
