"""One split of a stream: windows to train on, chunks in file order to evaluate."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.encode import find_groups
from mmoe.datasets.labels.maturity import Maturity
from mmoe.datasets.rows.batch_source import Windows, encode_rows
from mmoe.datasets.rows.encoded import EncodedData, in_chunks, join
from mmoe.datasets.rows.lanes import Lane
from mmoe.datasets.rows.order import window_rows
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.stream.split import PieceReader, Split
from mmoe.datasets.values.keys import GroupCodes

_CHUNKS_AHEAD = 2


class StreamRows:
    """Rows of one split, read and encoded while they are used: the reader of a `BatchSource`.

    Args:
        split: Which rows.
        config: Features, tasks and `data.streaming`.
        encoder: Fitted.
        maturity: When the labels were collected; None where none matures.
    """

    def __init__(
        self,
        split: Split,
        config: RunConfig,
        encoder: FeatureEncoder,
        maturity: Maturity | None = None,
    ) -> None:
        self.split, self.encoder, self.maturity = split, encoder, maturity
        self.group = config.data.group_column
        # Whole batches of the fixed height that predictions are made in
        self.chunk_rows = window_rows(
            config.data.streaming.chunk_rows, config.training.eval_batch_size
        )
        # Groups are numbered over all chunks, and training needs none
        self.config = config.model_copy(
            update={"data": config.data.model_copy(update={"group_column": None})}
        )
        self.columns = list(column_uses(self.config, split.source.schema.names))
        if self.group is not None:  # read in evaluation, but refused before training
            find_groups(split.source.schema.empty_table(), self.group, split.source.origin)

    @property
    def counts_P(self) -> np.ndarray:
        """Rows of each piece."""
        return self.split.counts_P

    def chunks(self, first: int, stop: int) -> Generator[EncodedData]:
        """Rows [first, stop) in file order, with labels and groups, encoded in the background.

        Of the rows before them the group column alone is read: groups are numbered over all rows.
        """
        return prefetch(in_chunks(self._chunks(first, stop), self.chunk_rows), _CHUNKS_AHEAD)

    def windows(self, schedule: Sequence[Windows], lanes: Sequence[Lane]) -> Iterator[EncodedData]:
        """Yields the rows of each window, those of the first lane first."""
        # One for each lane: two of them may read one piece, at different places
        readers = [PieceReader(self.split, self.columns) for _ in lanes]
        for of_lanes in schedule:
            tables = (
                table
                for window, reader in zip(of_lanes, readers, strict=True)
                for take in window.takes
                for table in reader.take(take)
            )
            yield join([self._encode(table) for table in tables] or [self._no_rows()])

    def _chunks(self, first: int, stop: int) -> Generator[EncodedData]:
        if first >= stop:
            yield _grouped(self._no_rows(), None if self.group is None else np.zeros(0, np.int64))
            return
        groups, origin = GroupCodes(), self.split.source.origin
        for at, table in self._tables(first, stop):
            mine = slice(max(first - at, 0), stop - at)
            groups_N = None
            if self.group is not None:
                groups_N = groups.codes(find_groups(table, self.group, origin))[mine]
            if table[mine].num_rows:
                yield _grouped(self._encode(table[mine]), groups_N)

    def _tables(self, first: int, stop: int) -> Iterator[tuple[int, pa.Table]]:
        """The pieces with rows [first, stop), in tables with the number of each one's first row.

        Where rows have groups, those of the pieces before come too, with that column alone.
        """
        alone = [] if self.group is None else [self.group]
        columns = list(dict.fromkeys([*self.columns, *alone]))
        at = 0
        for piece in np.flatnonzero(self.split.counts_P):
            end = at + int(self.split.counts_P[piece])
            asked = alone if end <= first else columns
            if asked and at < stop:
                for table in self.split.tables(int(piece), asked):
                    if at >= stop:
                        return
                    yield at, table
                    at += table.num_rows
            at = end

    def _no_rows(self) -> EncodedData:
        """Of a rank whose share of the rows is empty."""
        schema = self.split.source.schema
        return self._encode(schema.empty_table().select(self.columns))

    def _encode(self, table: pa.Table) -> EncodedData:
        origin = self.split.source.origin
        return encode_rows(table, self.encoder, origin, self.config, maturity=self.maturity)


def _grouped(data: EncodedData, groups_N: np.ndarray | None) -> EncodedData:
    assert data.labels is not None
    return replace(data, labels=replace(data.labels, groups_N=groups_N))
