"""Counts a column's ids, chunk by chunk: how often each occurs, and of which kind they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config.data import MISSING_WORDS
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_text, pc
from mmoe.datasets.values.keys import (
    ARROW_TYPES,
    KeyKind,
    key_kind,
    refuse_nested,
    refuse_rounding,
    to_keys,
    widest,
)
from mmoe.datasets.values.text import TextKind

_PENDING = 1 << 18  # rows of counts that wait to be added up


@dataclass(frozen=True)
class Counts:
    """Distinct values of a column, as the file stores them, and how often each was seen."""

    values: pa.ChunkedArray
    counts: pa.ChunkedArray
    label: str  # what the column is called in an error


class CountedRows:
    """Adds up tables of distinct rows and their counts; memory grows with the distinct ones alone.

    Args:
        names: The columns that tell rows apart; one more, `count`, says how often each was seen.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.tables: list[pa.Table] = []
        self.pending = self.settled = 0

    def add(self, counted: pa.Table) -> None:
        """Adds more rows."""
        self.tables.append(counted)
        self.pending += counted.num_rows
        if self.pending > max(_PENDING, self.settled):
            self._merge()

    def finish(self) -> pa.Table:
        """Returns the counts of all rows."""
        self._merge()
        return self.tables[0]

    def _merge(self) -> None:
        if len(self.tables) > 1:
            table = pa.concat_tables(self.tables, promote_options="permissive")
            self.tables = [add_up(table, self.names).combine_chunks()]
        self.pending, self.settled = 0, self.tables[0].num_rows


class CountFit:
    """Counts the values of one column; memory grows with the distinct ones alone.

    Args:
        label: What the column is called in an error.
        settle: Text was cut out of lists: give it the type that all of it looks like.
        words: Those that mean a missing value there.
    """

    def __init__(
        self, label: str, *, settle: bool = False, words: Sequence[str] = MISSING_WORDS
    ) -> None:
        self.label, self.settle, self.words = label, settle, words
        self.rows = CountedRows(["value"])
        self.ends: dict[str, tuple[float, float]] = {}  # of lists: section → lowest and highest

    def add(self, column: pa.ChunkedArray, times_N: np.ndarray | None = None) -> None:
        """Counts more rows.

        Args:
            column: N rows.
            times_N: How often each counts, int64; None: once.

        Raises:
            ValueError: The column holds lists.
        """
        refuse_nested(column, self.label)
        if times_N is not None:
            is_there = pc.invert(pc.is_null(column, nan_is_null=True))
            values = countable(column.filter(is_there), self.label)
            times = pa.array(times_N).filter(is_there.combine_chunks())
            self.rows.add(add_up(pa.table({"value": values, "count": times}), ["value"]))
            return
        present = column.drop_null()
        if pa.types.is_floating(column.type):
            present = present.filter(pc.invert(pc.is_nan(present)))
        counted = pc.value_counts(countable(present, self.label))
        self.rows.add(pa.Table.from_arrays(counted.flatten(), names=["value", "count"]))

    def finish(self) -> Counts:
        """Returns the counts of all rows."""
        table = self.rows.finish()
        values = table["value"]
        if self.settle and is_text(values.type):
            values = text.settle(values, self.words)
        return Counts(values, table["count"], self.label)


class KindFit:
    """Finds which kind of key one column holds; remembers no value."""

    def __init__(
        self, label: str, *, settle: bool = False, words: Sequence[str] = MISSING_WORDS
    ) -> None:
        self.label, self.settle = label, settle
        self.ends: dict[str, tuple[float, float]] = {}  # of lists: section → lowest and highest
        self.kinds: set[KeyKind] = set()
        self.text = TextKind(words)
        self.any_text = False

    def add(self, column: pa.ChunkedArray, times_N: np.ndarray | None = None) -> None:
        """Looks at more rows, however often each counts."""
        if self.settle and is_text(column.type):
            self.text.add(column)
            self.any_text = True
        else:
            self.kinds.add(key_kind(column, self.label))

    def finish(self) -> KeyKind:
        """Returns int, float or text."""
        if self.any_text:
            kind = self.text.type
            real = pa.types.is_floating(kind) and not self.text.whole
            self.kinds.add("text" if is_text(kind) else "float" if real else "int")
        return widest(self.kinds)


def count_keys(columns: Sequence[Counts]) -> tuple[KeyKind, pa.Table]:
    """Joins counted columns: their common kind, and a table of key and count."""
    kind = widest(key_kind(column.values, column.label) for column in columns)
    tables = []
    for column in columns:
        refuse_rounding(column.values, kind, column.label)
        keys = to_keys(column.values, kind, column.label)
        table = pa.table({"key": keys.cast(ARROW_TYPES[kind]), "count": column.counts})
        tables.append(table.filter(pc.is_valid(table["key"])))
    return kind, add_up(pa.concat_tables(tables), ["key"])


def add_up(counted: pa.Table, names: list[str]) -> pa.Table:
    """Adds up the counts of equal rows in the columns `names`, none of them null."""
    if len(names) > 1:
        table = counted.group_by(names).aggregate([("count", "sum")])
        return table.rename_columns({"count_sum": "count"}).select([*names, "count"])
    # What Arrow does for one column alone takes a quarter of the time for text
    coded = counted[names[0]].combine_chunks().dictionary_encode()
    sums = np.zeros(len(coded.dictionary), np.int64)
    np.add.at(sums, coded.indices.to_numpy(), counted["count"].to_numpy())
    return pa.table({names[0]: coded.dictionary, "count": sums})


def countable(column: pa.ChunkedArray, label: str) -> pa.ChunkedArray:
    """Casts cells, none of them missing, to a type that Arrow counts."""
    kind = column.type
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind):  # the narrow ones are not counted
        return column.cast(pa.decimal256(76, max(kind.scale, 0)))
    if pa.types.is_integer(kind) or is_text(kind) or pa.types.is_boolean(kind):
        return column
    return to_keys(column, key_kind(column, label), label)  # datetimes, days, bytes: text
