"""Profiles a column: the facts from which a first config is inferred."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from mmoe.datasets.infer.guess_vectors import VectorFacts, look_for_vectors
from mmoe.datasets.values.arrow import is_list, is_text, pc, plain
from mmoe.datasets.values.columns import numbers_of, parse_datetimes
from mmoe.datasets.values.text import settle

Nature = Literal["integer", "real", "boolean", "text", "list", "vector", "datetime", "other"]

_ISO = re.compile(r"^\d{4}-\d\d(-\d\d)?([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?$")
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
        numbers_N: float64 [N], NaN where missing; None for text and lists. Datetimes are seconds
            since 1970.
        keys: Keys of a feature of this nature that say how its cells are read.
        said: How they are read, in words; "" where nothing need be said.
        no_input: Why no feature can be made of it, or "".
        offered: Where it may be read in two ways, the keys of each.
        vector: Of lists of real numbers.
        of_day: It holds times of day, which are no moments.
    """

    name: str
    nature: Nature
    rows: int
    missing: int
    distinct: int
    separator: str | None = None
    numbers_N: np.ndarray | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""
    no_input: str = ""
    offered: tuple[Mapping[str, Any], ...] = ()
    vector: VectorFacts | None = None
    of_day: bool = False

    @property
    def unique_per_row(self) -> bool:
        """Whether every row has its own value, no real number and no list, of which items count."""
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
    distinct = 0 if nature in ("list", "vector", "other") else _distinct(column)
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


def _distinct(column: pa.ChunkedArray) -> int:
    if pa.types.is_null(column.type):
        return 0
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return int(pc.count_distinct(column, mode="only_valid").as_py())
