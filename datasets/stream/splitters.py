"""Splitters: which split a row of a stream is in: 0 = training, 1 = validation, 2 = test, 3 = none.

The same rows as `split_table` puts there, found in bounded memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
            bits = (times_N + 0.0).view(np.int64)  # in the order of the numbers:
            times_N = np.where(bits < 0, ~bits ^ _SIGN, bits)
        found, counts = np.unique(self._coarser(times_N.astype(np.int64)), return_counts=True)
        self.pending.append((found, counts))
        self.waiting += len(found)
        if self.waiting > max(len(self.times), _LEAST):
            self._add_up()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns ascending times and the number of rows of each."""
        self._add_up()
        if not self.real:
            return self.times, self.counts
        bits = np.where(self.times < 0, ~(self.times ^ _SIGN), self.times)
        return bits.view(np.float64), self.counts

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


_ROWS = 1 << 17  # row numbers hashed at a time


@dataclass(frozen=True)
class Splitter:
    """Assigns the rows of any chunk of a source to splits."""

    # Given rows, the number of the first one in the source and how many they are, returns their
    # splits, int8 [rows]. Without columns that it looks at the rows may be None.
    of: Callable[[Any, int, int], np.ndarray]
    # Names of the columns that it looks at; none: the row's number is enough
    columns: Sequence[str] = ()

    def without_test(self) -> "Splitter":
        """Returns the same, whose test rows train."""

        def of(table: Any, first: int, rows: int) -> np.ndarray:
            split_N = self.of(table, first, rows)
            return np.where(split_N == 2, 0, split_N).astype(np.int8)

        return Splitter(of, self.columns)

    def without_copies(self, copies_N: np.ndarray | None) -> "Splitter":
        """Returns the same, but for rows that come before already; `copies_N`: which these are."""
        if copies_N is None:
            return self

        def of(table: Any, first: int, rows: int) -> np.ndarray:
            split_N = self.of(table, first, rows)
            split_N[copies_N[first : first + rows]] = NO_SPLIT
            return split_N

        return Splitter(of, self.columns)


ALL_TRAIN = Splitter(lambda _, first, rows: np.zeros(rows, np.int8))
"""Assigns every row to training."""


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
    return found.without_copies(copies_in([source])[0] if repeated == "drop" else None)


def _fitted(
    source: StreamSource,
    split: SplitConfig,
    seed: int,
    requests: RequestsConfig | None,
    together: Sequence[str],
) -> Splitter:
    if split.by == "random" and requests is not None:

        def by_request(table: pa.Table, first: int, rows: int) -> np.ndarray:
            found = find_requests(requests, table, source.origin)
            return request_splits(found, split, seed)

        return Splitter(by_request, [request_column(requests)])
    if split.by == "random" and together:

        def by_content(table: pa.Table, first: int, rows: int) -> np.ndarray:
            return splits_by_hash(row_hashes(table, together), split, seed)

        return Splitter(by_content, together)
    if split.by == "random":
        cuts = random_cuts(source.num_rows, split, seed)
        return Splitter(lambda _, first, rows: random_splits(first, rows, cuts, seed))
    if split.by == "hash":
        return _by_key(source, split, seed, together)
    if split.by == "time":
        return _by_time(source, split)
    if split.by == "day":

        def by_day(table: pa.Table, first: int, rows: int) -> np.ndarray:
            drawn_N = None
            if requests is not None:
                drawn_N = find_requests(requests, table, source.origin).keys_N
            elif together:
                drawn_N = row_hashes(table, together)
            return day_splits(table, split, seed, source.origin, first, drawn_N)

        own = [*(together or [split.column or ""])]
        return Splitter(by_day, own if requests is None else [*own, request_column(requests)])
    raise ValueError(
        f"{source.origin}: a split by {split.by} cannot be streamed from one path; split by "
        "random, hash, time, day or file, or set data.input: memory"
    )


def _by_key(
    source: StreamSource, split: SplitConfig, seed: int, together: Sequence[str]
) -> Splitter:
    """All rows of a key together; keys are read here only where their type does not say it all."""
    name, origin = split.column, source.origin
    assert name is not None
    label = f"{origin}: column {name!r}"
    fit = KindFit(label)
    kind = plain_type(source.schema.field(name).type)  # beside candidates it is a dictionary's
    if is_text(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        fit.add(pa.chunked_array([], kind))
    else:
        for piece in source.pieces:
            for _, table in source.read(piece, [name]):
                fit.add(find_column(table, name, origin, "data.split.column"))
    of_keys = fit.finish()

    def of(table: pa.Table, first: int, rows: int) -> np.ndarray:
        column = find_column(table, name, origin, "data.split.column")
        drawn_N = row_hashes(table, together) if together else None
        return hash_splits(column, of_keys, label, split, seed, first, drawn_N)

    return Splitter(of, together or [name])


def _by_time(source: StreamSource, split: SplitConfig) -> Splitter:
    """The past trains, the future tests: the column of times is read once to find where to cut."""
    name, origin = split.column, source.origin
    assert name is not None
    fit = TimeFit(name, origin)
    for piece in source.pieces:
        for _, table in source.read(piece, [name]):
            fit.add(to_times(table, name, origin, split.format), str(piece.file))
    cuts = time_cuts(*fit.finish(), split, origin)

    def of(table: pa.Table, first: int, rows: int) -> np.ndarray:
        return time_splits(to_times(table, name, origin, split.format), cuts)

    return Splitter(of, [name])


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
    """Rows of a source that belong to one split."""

    source: StreamSource  # the files
    splitter: Splitter  # which split a row belongs to
    number: int  # the one that is meant
    counts_P: np.ndarray  # rows of each piece that belong to it

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
