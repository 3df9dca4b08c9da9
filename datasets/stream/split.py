"""Rows of a source that belong to one split, in any order of its pieces."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.order import Take
from mmoe.datasets.stream.source import MOVE, StreamSource
from mmoe.datasets.stream.splitters import Splitter


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
