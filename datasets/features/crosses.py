"""Crosses: the ids of several columns together as one id."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import CrossFeature
from mmoe.datasets.features.fit_ids import CountedRows, Counts, KindFit, countable
from mmoe.datasets.rows.places import find_column
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.keys import KeyKind, hash_keys, key_kind, missing_mask, to_keys, widest


@dataclass(frozen=True)
class CrossColumns:
    """The columns of a cross, N rows each, and what each is called in an error."""

    columns: list[pa.ChunkedArray]
    labels: list[str]


def cross_columns(table: pa.Table, feature: CrossFeature, origin: str) -> CrossColumns:
    """The columns that a cross reads.

    Raises:
        ValueError: A column is missing, or holds lists.
    """
    columns, labels = [], []
    for name in feature.columns:
        column = find_column(table, name, origin, f"feature {feature.name!r}")
        label = f"{origin}: column {name!r} (of feature {feature.name!r})"
        if pa.types.is_nested(column.type):
            raise ValueError(f"{label} holds {column.type}, but a cross takes one id a row")
        columns.append(column)
        labels.append(label)
    return CrossColumns(columns, labels)


def cross_keys(cross: CrossColumns, kinds: Sequence[KeyKind]) -> tuple[pa.ChunkedArray, np.ndarray]:
    """One 64-bit key a row, the same on every machine and for every type that holds the same ids.

    h_0 = mix64(number of columns), h_i = mix64(h_{i−1} + hash of the i-th id); two rows with other
    ids have one key with probability 2⁻⁶⁴.

    Args:
        cross: N rows.
        kinds: What each column's ids are, from training.

    Returns:
        int64 [N], null where the id of a column is missing; and bool [N], where an id is none of
        its kind (text, where training had integers), so training cannot have had it.

    Example:
        >>> columns = [pa.chunked_array([[1, 1, 2]]), pa.chunked_array([["a", None, "a"]])]
        >>> keys, _ = cross_keys(CrossColumns(columns, ["user", "item"]), ["int", "text"])
        >>> len(set(keys.to_pylist())), keys[1].as_py()
        (3, None)
    """
    num_rows = len(cross.columns[0])
    mixed_N = mix64(np.full(num_rows, len(kinds), np.uint64))
    missing_N, alien_N = np.zeros(num_rows, bool), np.zeros(num_rows, bool)
    for column, kind, label in zip(cross.columns, kinds, cross.labels, strict=True):
        keys = to_keys(column, kind, label)
        mixed_N = mix64(mixed_N + hash_keys(keys))
        if keys.null_count:
            null_N = pc.is_null(keys).to_numpy()
            gone_N = null_N & missing_mask(column, kind)
            missing_N |= gone_N
            alien_N |= null_N & ~gone_N
    keys = pa.array(mixed_N.view(np.int64), mask=missing_N)
    return pa.chunked_array([keys]), alien_N & ~missing_N


class CrossCountFit:
    """Counts the ids of a cross as its files store them; memory grows with the distinct ones."""

    def __init__(self) -> None:
        self.rows: CountedRows | None = None
        self.labels: list[str] = []

    def add(self, cross: CrossColumns) -> None:
        """More rows."""
        names = [str(position) for position in range(len(cross.columns))]
        self.rows, self.labels = self.rows or CountedRows(names), cross.labels
        cross = _complete(cross)
        columns = [
            countable(c, label) for c, label in zip(cross.columns, cross.labels, strict=True)
        ]
        counted = pa.table(columns, names=names).group_by(names).aggregate([([], "count_all")])
        self.rows.add(counted.rename_columns({"count_all": "count"}))

    def finish(self) -> tuple[CrossColumns, pa.ChunkedArray]:
        """The distinct ids and how often each was seen."""
        assert self.rows is not None, "there were training rows"
        table = self.rows.finish()
        columns = [table[name] for name in self.rows.names]
        return CrossColumns(columns, self.labels), table["count"]


class CrossKindFit:
    """What each column of a cross holds; remembers no value."""

    def __init__(self) -> None:
        self.fits: list[KindFit] = []

    def add(self, cross: CrossColumns) -> None:
        """More rows."""
        self.fits = self.fits or [KindFit(label) for label in cross.labels]
        for fit, column in zip(self.fits, _complete(cross).columns, strict=True):
            fit.add(column)

    def finish(self) -> list[KeyKind]:
        """The kind of each column."""
        return [fit.finish() for fit in self.fits]


def kinds_of_counts(parts: Sequence[tuple[CrossColumns, pa.ChunkedArray]]) -> list[KeyKind]:
    """The kind of each column, over all crosses that share a table."""
    found = [
        [key_kind(c, label) for c, label in zip(cross.columns, cross.labels, strict=True)]
        for cross, _ in parts
    ]
    return widest_columns(found)


def widest_columns(found: Sequence[Sequence[KeyKind]]) -> list[KeyKind]:
    """First with first, second with second."""
    return [widest(kinds) for kinds in zip(*found, strict=True)]


def counts_of_keys(
    cross: CrossColumns, counts: pa.ChunkedArray, kinds: Sequence[KeyKind], label: str
) -> Counts:
    """Counted ids as counted keys; `label` is what the cross is called in an error."""
    return Counts(cross_keys(cross, kinds)[0], counts, label)


def _complete(cross: CrossColumns) -> CrossColumns:
    """The rows in which no column is null or NaN."""
    missing = [pc.is_null(column, nan_is_null=True) for column in cross.columns]
    if not any(pc.any(one, min_count=0).as_py() for one in missing):
        return cross
    present_N = ~np.any([one.to_numpy() for one in missing], axis=0)
    columns = [column.filter(pa.array(present_N)) for column in cross.columns]
    return CrossColumns(columns, cross.labels)
