"""The rows of a source that belong to one part, in any order of its pieces."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.order import Take
from mmoe.datasets.stream.parts import Parts
from mmoe.datasets.stream.source import MOVE, StreamSource


@dataclass(frozen=True, kw_only=True)
class Split:
    """Rows of a source that belong to one part.

    Attributes:
        source: The files.
        parts: Which part a row belongs to.
        part: The one that is meant.
        counts_P: Rows of each piece that belong to it.
    """

    source: StreamSource
    parts: Parts
    part: int
    counts_P: np.ndarray

    def __len__(self) -> int:
        return int(self.counts_P.sum())

    def tables(self, piece: int, columns: list[str]) -> Iterator[pa.Table]:
        """The part's rows of one piece, in order, in chunks."""
        asked = columns
        if self.parts.column is not None and self.parts.column not in columns:
            asked = [*columns, self.parts.column]
        for first, table in self.source.read(self.source.pieces[piece], asked):
            mine_N = self.parts.of(table, first, table.num_rows) == self.part
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
        """The rows of one take, which never goes back in a piece; earlier rows are passed over.

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
            part = table.slice(0, rows)
            piece.rest = table.slice(rows) if table.num_rows > rows else None
            piece.done += part.num_rows
            rows -= part.num_rows
            yield part
