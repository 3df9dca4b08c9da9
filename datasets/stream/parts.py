"""Which part a row of a stream belongs to: 0 = training, 1 = validation, 2 = test, 3 = none.

The same rows as `split_table` puts there, found in bounded memory.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from mmoe.config import SplitConfig
from mmoe.datasets.features.fit_ids import KindFit
from mmoe.datasets.rows.days import day_parts
from mmoe.datasets.rows.places import find_column
from mmoe.datasets.rows.splits import (
    hash_parts,
    random_cuts,
    random_parts,
    time_cuts,
    time_parts,
)
from mmoe.datasets.stream.source import StreamSource
from mmoe.datasets.stream.times import TimeFit
from mmoe.datasets.values.columns import to_times
from mmoe.datasets.values.keys import KeyKind
from mmoe.datasets.values.plain import is_text

_ROWS = 1 << 17  # row numbers hashed at a time


class Parts(Protocol):
    """Cuts any chunk of a source."""

    @property
    def column(self) -> str | None:
        """The column it looks at; None: the row's number is enough."""
        ...

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Parts, int8 [rows], of rows that are number `first` and up of the source."""
        ...


@dataclass(frozen=True)
class WholeParts:
    """Every row belongs to training."""

    column: str | None = None

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Zeros."""
        return np.zeros(rows, np.int8)


@dataclass(frozen=True)
class RandomParts:
    """Rows whose hashed number is among the smallest."""

    cuts: tuple[int, int]
    seed: int
    column: str | None = None

    @classmethod
    def fit(cls, num_rows: int, split: SplitConfig, seed: int) -> "RandomParts":
        """The hashes below which just as many rows lie as validation and test shall have."""
        return cls(random_cuts(num_rows, split, seed), seed)

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """By the rows' numbers."""
        return random_parts(first, rows, self.cuts, self.seed)


@dataclass(frozen=True)
class HashParts:
    """All rows of a key together."""

    split: SplitConfig
    seed: int
    kind: KeyKind
    origin: str

    @property
    def column(self) -> str | None:
        """The key."""
        return self.split.column

    @classmethod
    def fit(cls, source: StreamSource, split: SplitConfig, seed: int) -> "HashParts":
        """Finds what the keys are; reads them only where their type does not say it."""
        name = split.column
        assert name is not None
        fit = KindFit(f"{source.origin}: column {name!r}")
        kind = source.schema.field(name).type
        sure = is_text(kind) or (pa.types.is_integer(kind) and kind != pa.uint64())
        if sure:
            fit.add(pa.chunked_array([], kind))
        else:
            for piece in source.pieces:
                for _, table in source.read(piece, [name]):
                    fit.add(table[name])
        return cls(split=split, seed=seed, kind=fit.finish(), origin=source.origin)

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """By the keys."""
        assert table is not None and self.column is not None
        column = find_column(table, self.column, self.origin, "data.split.column")
        label = f"{self.origin}: column {self.column!r}"
        return hash_parts(column, self.kind, label, self.split, self.seed, first)


@dataclass(frozen=True)
class TimeParts:
    """The past trains, the future tests."""

    split: SplitConfig
    cuts: tuple[Any, Any]
    origin: str

    @property
    def column(self) -> str | None:
        """The time."""
        return self.split.column

    @classmethod
    def fit(cls, source: StreamSource, split: SplitConfig) -> "TimeParts":
        """Reads the column of times once to find where to cut."""
        name = split.column
        assert name is not None
        fit = TimeFit(name, source.origin)
        for piece in source.pieces:
            for _, table in source.read(piece, [name]):
                fit.add(to_times(table, name, source.origin), str(piece.file))
        moments, counts = fit.finish()
        return cls(split, time_cuts(moments, counts, split, source.origin), source.origin)

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """By the times."""
        assert table is not None and self.column is not None
        return time_parts(to_times(table, self.column, self.origin), self.cuts)


@dataclass(frozen=True)
class DayParts:
    """Some days train, others test."""

    split: SplitConfig
    seed: int
    origin: str

    @property
    def column(self) -> str | None:
        """The day."""
        return self.split.column

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """By the days."""
        assert table is not None
        return day_parts(table, self.split, self.seed, self.origin, first)


def fit_parts(source: StreamSource, split: SplitConfig, seed: int) -> Parts:
    """How `split` cuts the rows of a source."""
    if split.by == "random":
        return RandomParts.fit(source.num_rows, split, seed)
    if split.by == "hash":
        return HashParts.fit(source, split, seed)
    if split.by == "time":
        return TimeParts.fit(source, split)
    if split.by == "day":
        return DayParts(split, seed, source.origin)
    raise ValueError(
        f"{source.origin}: a split by {split.by} cannot be streamed from one path; split by "
        "random, hash, time, day or file, or set data.input: memory"
    )


def count_parts(source: StreamSource, parts: Parts) -> np.ndarray:
    """Rows of each piece and part, int64 [P, 3]; reads the split's column, where there is one."""
    counts_P3 = np.zeros((len(source.pieces), 3), np.int64)
    for p, piece in enumerate(source.pieces):
        if parts.column is None:
            for start in range(0, piece.rows, _ROWS):
                rows = min(_ROWS, piece.rows - start)
                part_N = parts.of(None, piece.before + start, rows)
                counts_P3[p] += np.bincount(part_N, minlength=4)[:3]
        else:
            for first, table in source.read(piece, [parts.column]):
                part_N = parts.of(table, first, table.num_rows)
                counts_P3[p] += np.bincount(part_N, minlength=4)[:3]
    return counts_P3
