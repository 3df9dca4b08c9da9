"""One split of a stream: shuffled batches to train on, chunks in file order to evaluate."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.batch import Batch
from mmoe.datasets.encoded import EncodedData, in_chunks, join
from mmoe.datasets.encoder import FeatureEncoder
from mmoe.datasets.keys import GroupCodes
from mmoe.datasets.labels import encode_labels
from mmoe.datasets.projection import column_uses
from mmoe.datasets.rows import find_column
from mmoe.datasets.stream.order import Window, row_order, window_rows, windows
from mmoe.datasets.stream.parts import Parts
from mmoe.datasets.stream.prefetch import prefetch
from mmoe.datasets.stream.source import StreamSource

# A window is made while another is trained on; chunks of evaluation are smaller
_WINDOWS_AHEAD, _CHUNKS_AHEAD = 1, 2


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


class StreamRows:
    """Encoded rows of one split, of which only a few are in memory.

    Takes the place of `EncodedData`: it has a length, batches of an epoch, and chunks.

    Args:
        split: Which rows.
        config: Features, tasks and `data.streaming`.
        encoder: Fitted.
    """

    def __init__(self, split: Split, config: RunConfig, encoder: FeatureEncoder) -> None:
        self.split, self.encoder = split, encoder
        self.group = config.data.group_column
        self.streaming = config.data.streaming
        # Groups are numbered over all chunks, and training needs none
        self.config = config.model_copy(
            update={"data": config.data.model_copy(update={"group_column": None})}
        )
        self.columns = list(column_uses(self.config, split.source.schema.names))
        self._everything: EncodedData | None = None  # where one window holds the whole split

    def __len__(self) -> int:
        return len(self.split)

    def chunks(self) -> Generator[EncodedData]:
        """The rows in file order, with labels and groups, encoded ahead in the background."""
        # Whole batches of the fixed height that predictions are made in
        size = window_rows(self.streaming.chunk_rows, self.config.training.eval_batch_size)
        return prefetch(in_chunks(self._chunks(), size), _CHUNKS_AHEAD)

    def epoch_batches(self, seed: int, epoch: int, size: int, first: int = 0) -> Generator[Batch]:
        """The batches of an epoch from number `first` on; made ahead in the background.

        Args:
            seed: Of the run.
            epoch: Counted from 0.
            size: Rows of a batch; the epoch's last one may have fewer.
            first: Batches that are done.
        """
        batches = self._batches(seed, epoch, size, first)
        return prefetch(batches, self.streaming.read_ahead_batches)

    def _batches(self, seed: int, epoch: int, size: int, first: int) -> Generator[Batch]:
        rows = window_rows(self.streaming.shuffle_buffer_rows, size)
        counts_P = self.split.counts_P
        plan = list(windows(counts_P, rows, seed, epoch, first * size))
        filled = prefetch(map(self._fill, plan), _WINDOWS_AHEAD)
        try:
            for window, data in zip(plan, filled, strict=True):
                order = row_order(window, seed, epoch)
                for start in range(max(first * size - window.start, 0), len(order), size):
                    yield data.batch(order[start : start + size])
                del data  # the next window may take its place
        finally:
            filled.close()

    def _fill(self, window: Window) -> EncodedData:
        """Reads and encodes a window; one that holds the whole split is kept for every epoch."""
        if self._everything is not None:
            return self._everything
        need, skip, parts = window.stop - window.start, window.skip, []
        for piece in window.pieces:
            for table in self.split.tables(piece, self.columns):
                rows = table.slice(skip, need)
                skip = max(skip - table.num_rows, 0)
                if rows.num_rows:
                    parts.append(self._encode(rows))
                    need -= rows.num_rows
                if not need:
                    break
        data = join(parts)
        if len(data) == len(self):
            self._everything = data
        return data

    def _chunks(self) -> Generator[EncodedData]:
        groups = GroupCodes()
        columns = list(dict.fromkeys([*self.columns, *([self.group] if self.group else [])]))
        origin = self.split.source.origin
        for piece in np.flatnonzero(self.split.counts_P):
            for table in self.split.tables(int(piece), columns):
                data = self._encode(table)
                if self.group is not None:
                    column = find_column(table, self.group, origin, "data.group_column")
                    assert data.labels is not None
                    labels = replace(data.labels, groups_N=groups.codes(column))
                    data = replace(data, labels=labels)
                yield data

    def _encode(self, table: pa.Table) -> EncodedData:
        origin = self.split.source.origin
        return EncodedData(
            features=self.encoder.encode(table, origin),
            labels=encode_labels(self.config, table, origin),
        )
