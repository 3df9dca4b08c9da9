"""Splitters: which split a row of a stream is in: 0 = training, 1 = validation, 2 = test, 3 = none.

The same rows as `split_table` puts there, found in bounded memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from mmoe.config import RequestsConfig, SplitConfig
from mmoe.config.data import RepeatedRows
from mmoe.datasets.features.fit_ids import KindFit
from mmoe.datasets.rows.locations import REQUEST_COLUMN, find_column
from mmoe.datasets.rows.order import Take
from mmoe.datasets.rows.repeats import later_copies
from mmoe.datasets.rows.requests import find_requests
from mmoe.datasets.rows.splits import (
    NO_SPLIT,
    day_splits,
    hash_splits,
    random_cuts,
    random_splits,
    refuse_cut,
    request_splits,
    splits_by_hash,
    time_cuts,
    time_splits,
)
from mmoe.datasets.stream.source import MOVE, StreamSource
from mmoe.datasets.values.arrow import is_text, plain_type
from mmoe.datasets.values.columns import to_times
from mmoe.datasets.values.datetimes import TimeUnits
from mmoe.datasets.values.keys import KeyKind
from mmoe.datasets.values.row_hashes import row_hashes

_MOST = 1 << 20  # distinct times kept apart; 16 MB
_LEAST = 1 << 16  # times that wait before they are added up
_SIGN = np.int64(-(2**63))


class TimeFit:
    """Counts rows by time; beyond 2²⁰ distinct times neighbours are counted as one.

    Neighbours share all but their last `coarse` bits, and stand for the first of them: a split then
    cuts between two such times, at most a few millionths of the whole time away from the exact
    place. `coarse` depends on all the times alone, never on their chunks.

    Args:
        name: The column.
        origin: What the user calls the data; starts error messages.
    """

    def __init__(self, name: str, origin: str) -> None:
        self.name, self.origin = name, origin
        self.times = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []  # times and counts, not added up
        self.waiting = 0  # times in them
        self.coarse = 0
        self.real = False
        self.units = TimeUnits(name)

    def add(self, times_N: np.ndarray, file: str) -> None:
        """Counts more rows of `file`: int64 or float64, as `to_times` gives them.

        Raises:
            ValueError: They are in another unit than those of another file.
        """
        self.units.add(times_N, file)
        if times_N.dtype.kind == "f":
            self.real = True
            times_N = _ordered_bits(times_N)
        found, counts = np.unique(self._coarser(times_N.astype(np.int64)), return_counts=True)
        self.pending.append((found, counts))
        self.waiting += len(found)
        if self.waiting > max(len(self.times), _LEAST):
            self._add_up()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns ascending times and the number of rows of each."""
        self._add_up()
        return (_from_bits(self.times) if self.real else self.times), self.counts

    def _coarser(self, times_N: np.ndarray) -> np.ndarray:
        return times_N >> self.coarse << self.coarse

    def _add_up(self) -> None:
        times = np.concatenate([self.times, *(m for m, _ in self.pending)])
        counts = np.concatenate([self.counts, *(c for _, c in self.pending)])
        self.pending, self.waiting = [], 0
        while True:
            self.times, place = np.unique(self._coarser(times), return_inverse=True)
            self.counts = np.bincount(place, weights=counts).astype(np.int64)
            if len(self.times) <= _MOST:
                return
            self.coarse += 1
            times, counts = self.times, self.counts


def _ordered_bits(values: np.ndarray) -> np.ndarray:
    """float64 → int64 in the same order."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, ~bits ^ _SIGN, bits)


def _from_bits(bits: np.ndarray) -> np.ndarray:
    return np.where(bits < 0, ~(bits ^ _SIGN), bits).view(np.float64)


_ROWS = 1 << 17  # row numbers hashed at a time


class Splitter(Protocol):
    """Interface of what assigns the rows of any chunk of a source to splits."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns it looks at; none: the row's number is enough."""
        ...

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Returns the splits, int8 [rows], of rows that are number `first` and up of the source."""
        ...


@dataclass(frozen=True)
class WholeSplitter:
    """Assigns every row to training."""

    columns: Sequence[str] = ()

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns all rows to the one split."""
        return np.zeros(rows, np.int8)


@dataclass(frozen=True)
class RandomSplitter:
    """Rows whose hashed number is among the smallest."""

    cuts: tuple[int, int]
    seed: int
    columns: Sequence[str] = ()

    @classmethod
    def fit(cls, num_rows: int, split: SplitConfig, seed: int) -> "RandomSplitter":
        """Finds the hashes below which as many rows lie as validation and test shall have."""
        return cls(random_cuts(num_rows, split, seed), seed)

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows by their numbers."""
        return random_splits(first, rows, self.cuts, self.seed)


@dataclass(frozen=True)
class HashSplitter:
    """Assigns all rows of a key together."""

    split: SplitConfig
    seed: int
    kind: KeyKind
    origin: str
    together: Sequence[str] = ()

    @property
    def columns(self) -> Sequence[str]:
        """Names of the column of keys and, where copies stay together, of all columns."""
        return self.together or [self.split.column or ""]

    @classmethod
    def fit(
        cls, source: StreamSource, split: SplitConfig, seed: int, together: Sequence[str] = ()
    ) -> "HashSplitter":
        """Finds what the keys are; reads them only where their type does not say it."""
        name = split.column
        assert name is not None
        fit = KindFit(f"{source.origin}: column {name!r}")
        kind = plain_type(source.schema.field(name).type)  # beside candidates it is a dictionary's
        sure = is_text(kind) or (pa.types.is_integer(kind) and kind != pa.uint64())
        if sure:
            fit.add(pa.chunked_array([], kind))
        else:
            for piece in source.pieces:
                for _, table in source.read(piece, [name]):
                    fit.add(find_column(table, name, source.origin, "data.split.column"))
        kind = fit.finish()
        return cls(split=split, seed=seed, kind=kind, origin=source.origin, together=together)

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows by their keys."""
        assert table is not None and self.split.column is not None
        column = find_column(table, self.split.column, self.origin, "data.split.column")
        label = f"{self.origin}: column {self.split.column!r}"
        drawn_N = row_hashes(table, self.together) if self.together else None
        return hash_splits(column, self.kind, label, self.split, self.seed, first, drawn_N)


@dataclass(frozen=True)
class ContentSplitter:
    """Assigns all rows that are the same together."""

    split: SplitConfig
    seed: int
    columns: Sequence[str]

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows by their values."""
        assert table is not None
        return splits_by_hash(row_hashes(table, self.columns), self.split, self.seed)


@dataclass(frozen=True)
class RequestSplitter:
    """Requests whose hash is among the smallest."""

    requests: RequestsConfig
    split: SplitConfig
    seed: int
    origin: str

    @property
    def columns(self) -> Sequence[str]:
        """Name of the column that says which request a row is of."""
        return [request_column(self.requests)]

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows by their requests."""
        assert table is not None
        found = find_requests(self.requests, table, self.origin)
        return request_splits(found, self.split, self.seed)


@dataclass(frozen=True)
class TimeSplitter:
    """Assigns the past to training, the future to tests."""

    split: SplitConfig
    cuts: tuple[Any, Any]
    origin: str

    @property
    def columns(self) -> Sequence[str]:
        """Name of the column of times."""
        return [self.split.column or ""]

    @classmethod
    def fit(cls, source: StreamSource, split: SplitConfig) -> "TimeSplitter":
        """Reads the column of times once to find where to cut."""
        name = split.column
        assert name is not None
        fit = TimeFit(name, source.origin)
        for piece in source.pieces:
            for _, table in source.read(piece, [name]):
                times_N = to_times(table, name, source.origin, split.format)
                fit.add(times_N, str(piece.file))
        times, counts = fit.finish()
        return cls(split, time_cuts(times, counts, split, source.origin), source.origin)

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows by their times."""
        assert table is not None and self.split.column is not None
        times_N = to_times(table, self.split.column, self.origin, self.split.format)
        return time_splits(times_N, self.cuts)


@dataclass(frozen=True)
class DaySplitter:
    """Assigns some days to training, others to tests."""

    split: SplitConfig
    seed: int
    origin: str
    requests: RequestsConfig | None = None
    together: Sequence[str] = ()

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of days and requests; of all, where copies stay together."""
        own = self.together or [self.split.column or ""]
        return own if self.requests is None else [*own, request_column(self.requests)]

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows by their days."""
        assert table is not None
        drawn_N = None
        if self.requests is not None:
            drawn_N = find_requests(self.requests, table, self.origin).keys_N
        elif self.together:
            drawn_N = row_hashes(table, self.together)
        return day_splits(table, self.split, self.seed, self.origin, first, drawn_N)


@dataclass(frozen=True)
class NothingTests:
    """Another splitter, whose test rows train."""

    splitter: Splitter

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns that one looks at."""
        return self.splitter.columns

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows as that one does, but for the test."""
        split_N = self.splitter.of(table, first, rows)
        return np.where(split_N == 2, 0, split_N).astype(np.int8)


@dataclass(frozen=True)
class DroppingSplitter:
    """Another splitter, but for rows that come before already; `copies_N`: which these are."""

    splitter: Splitter
    copies_N: np.ndarray

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns that one looks at."""
        return self.splitter.columns

    def of(self, table: pa.Table | None, first: int, rows: int) -> np.ndarray:
        """Assigns rows as that one does; copies are in no split."""
        split_N = self.splitter.of(table, first, rows)
        split_N[self.copies_N[first : first + rows]] = NO_SPLIT
        return split_N


def copies_in(sources: Sequence[StreamSource]) -> list[np.ndarray]:
    """Finds rows that come before already, in a pass over sources: bool, for each of them.

    It takes some 24 bytes a row while it looks, and one then.
    """
    hashes = []
    for source in sources:
        names = list(source.schema.names)
        parts = [
            row_hashes(table, names)
            for piece in source.pieces
            for _, table in source.read(piece, names)
        ]
        hashes.append(np.concatenate(parts))
    return later_copies(hashes)


def fit_splitter(
    source: StreamSource,
    split: SplitConfig,
    seed: int,
    requests: RequestsConfig | None = None,
    repeated: RepeatedRows = "keep",
) -> Splitter:
    """Returns what cuts the rows of a source as `split` says, each request into one."""
    together = source.schema.names if repeated == "together" else []
    found = _fitted(source, split, seed, requests, together)
    return found if repeated != "drop" else DroppingSplitter(found, copies_in([source])[0])


def _fitted(
    source: StreamSource,
    split: SplitConfig,
    seed: int,
    requests: RequestsConfig | None,
    together: Sequence[str],
) -> Splitter:
    if split.by == "random" and requests is not None:
        return RequestSplitter(requests, split, seed, source.origin)
    if split.by == "random" and together:
        return ContentSplitter(split, seed, together)
    if split.by == "random":
        return RandomSplitter.fit(source.num_rows, split, seed)
    if split.by == "hash":
        return HashSplitter.fit(source, split, seed, together)
    if split.by == "time":
        return TimeSplitter.fit(source, split)
    if split.by == "day":
        return DaySplitter(split, seed, source.origin, requests, together)
    raise ValueError(
        f"{source.origin}: a split by {split.by} cannot be streamed from one path; split by "
        "random, hash, time, day or file, or set data.input: memory"
    )


def count_splits(
    source: StreamSource,
    splitter: Splitter,
    split: SplitConfig,
    requests: RequestsConfig | None = None,
) -> np.ndarray:
    """Counts rows of each piece and split, int64 [P, 3]; reads at most the columns of the split.

    Args:
        source: The files.
        splitter: Which split a row belongs to.
        split: What it was made of.
        requests: Of which none may be in two splits; looked at within what is decoded at a time.

    Raises:
        ValueError: A request is cut.
    """
    counts_P3 = np.zeros((len(source.pieces), 3), np.int64)
    columns = list(splitter.columns)
    requests = None if split.by == "random" else requests  # draws them whole
    if columns and requests is not None:
        columns = list(dict.fromkeys([*columns, request_column(requests)]))
    for p, piece in enumerate(source.pieces):
        if not columns:
            for start in range(0, piece.rows, _ROWS):
                rows = min(_ROWS, piece.rows - start)
                split_N = splitter.of(None, piece.before + start, rows)
                counts_P3[p] += np.bincount(split_N, minlength=4)[:3]
        else:
            for first, table in source.read(piece, columns):
                split_N = splitter.of(table, first, table.num_rows)
                if requests is not None:
                    found = find_requests(requests, table, source.origin)
                    refuse_cut(split_N, found, table, split, source.origin)
                counts_P3[p] += np.bincount(split_N, minlength=4)[:3]
    return counts_P3


def request_column(requests: RequestsConfig) -> str:
    """Returns the column that says which request a row is of."""
    return requests.column or REQUEST_COLUMN


@dataclass(frozen=True, kw_only=True)
class Split:
    """Rows of a source that belong to one split.

    Attributes:
        source: The files.
        splitter: Which split a row belongs to.
        number: The one that is meant.
        counts_P: Rows of each piece that belong to it.
    """

    source: StreamSource
    splitter: Splitter
    number: int
    counts_P: np.ndarray

    def __len__(self) -> int:
        return int(self.counts_P.sum())

    def tables(self, piece: int, columns: list[str]) -> Iterator[pa.Table]:
        """Yields the split's rows of one piece, in order, in chunks."""
        asked = list(dict.fromkeys([*columns, *self.splitter.columns]))
        for first, table in self.source.read(self.source.pieces[piece], asked):
            mine_N = self.splitter.of(table, first, table.num_rows) == self.number
            if mine_N.all():
                yield table
            elif mine_N.any():
                yield table.filter(pa.array(mine_N))


@dataclass
class _Open:
    """A piece that is being read: the rows still to come, and those decoded already."""

    tables: Iterator[pa.Table]
    rest: pa.Table | None = None
    done: int = 0  # rows handed out or passed over


class PieceReader:
    """Takes rows from several pieces in turns; each stays open until its last row is taken.

    Args:
        split: Which rows.
        columns: To read.
    """

    def __init__(self, split: Split, columns: list[str]) -> None:
        self.split, self.columns = split, columns
        self.open: dict[int, _Open] = {}

    def take(self, take: Take) -> Iterator[pa.Table]:
        """Yields the rows of one take; it never goes back within a piece.

        Raises:
            ValueError: The file holds fewer rows than before.
        """
        piece = self.open.get(take.piece)
        if piece is None:
            piece = self.open[take.piece] = _Open(self.split.tables(take.piece, self.columns))
        for _ in self._next(piece, take.piece, take.start - piece.done):
            pass
        yield from self._next(piece, take.piece, take.rows)
        if piece.done == self.split.counts_P[take.piece]:
            del self.open[take.piece]

    def _next(self, piece: _Open, number: int, rows: int) -> Iterator[pa.Table]:
        while rows:
            table = piece.rest if piece.rest is not None else next(piece.tables, None)
            if table is None:
                where = self.split.source.pieces[number].where
                raise ValueError(f"{where} holds other rows than before: {MOVE}")
            rows_here = table.slice(0, rows)
            piece.rest = table.slice(rows) if table.num_rows > rows else None
            piece.done += rows_here.num_rows
            rows -= rows_here.num_rows
            yield rows_here
