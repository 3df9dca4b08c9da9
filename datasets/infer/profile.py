"""Profiles a column: the facts from which a first config is inferred."""

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from mmoe.datasets.infer.guess_vectors import VectorFacts, look_for_vectors
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.columns import numbers_of, parse_datetimes
from mmoe.datasets.values.plain import is_list, is_text, plain
from mmoe.datasets.values.text import settle

Nature = Literal["integer", "real", "boolean", "text", "list", "vector", "datetime", "other"]

_ISO = re.compile(r"^\d{4}-\d\d(-\d\d)?([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?$")
_SEPARATORS = ("|", ";", ",")
_EXACT = 2.0**53


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """Facts about one column.

    Attributes:
        name: The column.
        nature: What it holds; whole floats count as integers (pandas' integers with gaps).
        rows: N.
        missing: Rows without a value.
        distinct: Distinct values.
        separator: Where text looks like lists, what stands between the items.
        numbers_N: float64 [N], NaN where missing; None for text and lists.
        vector: Of lists of real numbers.
    """

    name: str
    nature: Nature
    rows: int
    missing: int
    distinct: int
    separator: str | None = None
    numbers_N: np.ndarray | None = None
    vector: VectorFacts | None = None

    @property
    def unique_per_row(self) -> bool:
        """Whether every row has its own value, and they are no real numbers."""
        present = self.rows - self.missing
        return self.nature in ("integer", "text") and present > 2 and self.distinct == present

    def take(self, rows: np.ndarray) -> "ColumnProfile":
        """Returns the column with the numbers of some rows only; counts stay those of all."""
        numbers_N = None if self.numbers_N is None else self.numbers_N[rows]
        return replace(self, numbers_N=numbers_N)


def profile_column(name: str, column: pa.ChunkedArray) -> ColumnProfile:
    """Profiles all of a column.

    Example:
        >>> profile_column("x", pa.chunked_array([["a|b", "b", "a", "b|a", "a"]])).separator
        '|'
    """
    column = plain(column)
    if is_text(column.type):
        column = settle(column)
    vector = look_for_vectors(column)
    nature = _nature(column) if vector is None else "vector"
    missing = int(pc.sum(pc.is_null(column, nan_is_null=True).cast(pa.int64())).as_py() or 0)
    distinct = 0 if nature in ("list", "vector", "other") else _distinct(column)
    numbers_N = None
    if nature in ("integer", "real", "boolean") or (
        nature == "datetime" and not is_text(column.type)
    ):
        numbers_N = numbers_of(column)
    separator = _separator(column, distinct) if nature == "text" else None
    return ColumnProfile(
        name=name,
        nature=nature,
        rows=len(column),
        missing=missing,
        distinct=distinct,
        separator=separator,
        numbers_N=numbers_N,
        vector=vector,
    )


def _nature(column: pa.ChunkedArray) -> Nature:
    kind = column.type
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return "integer"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers_N = numbers_of(column)
        assert numbers_N is not None
        present = numbers_N[~np.isnan(numbers_N)]
        whole = np.array_equal(present, np.floor(present)) and (np.abs(present) < _EXACT).all()
        return "integer" if len(present) and whole else "real"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "datetime"
    if is_text(kind):
        return "datetime" if _is_iso(column) else "text"
    if is_list(kind) and not pa.types.is_nested(kind.value_type):
        return "list"
    return "other"


def _is_iso(column: pa.ChunkedArray) -> bool:
    present = column.drop_null()
    glance = present.slice(0, 100).to_pylist()
    if not glance or not all(_ISO.match(value) for value in glance):
        return False
    return parse_datetimes(present) is not None


def _distinct(column: pa.ChunkedArray) -> int:
    if pa.types.is_null(column.type):
        return 0
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return int(pc.count_distinct(column, mode="only_valid").as_py())


def _separator(column: pa.ChunkedArray, distinct: int) -> str | None:
    """Text is a list where items come back in other combinations: fewer items than texts."""
    present = column.drop_null()
    if len(present) < 3:
        return None
    for separator in _SEPARATORS:
        holds = pc.match_substring(present, separator)
        share = pc.mean(holds.cast(pa.float64())).as_py()
        if share < 0.1:
            continue
        items = pc.utf8_trim_whitespace(pc.list_flatten(pc.split_pattern(present, separator)))
        kinds = pc.count_distinct(items).as_py()
        sentences = pc.mean(pc.match_substring(items, " ").cast(pa.float64())).as_py() > 0.5
        if kinds < distinct and kinds <= len(items) / 2 and not sentences:
            return separator
    return None
