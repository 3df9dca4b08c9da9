"""One split of a stream: shuffled batches to train on, chunks in file order to evaluate."""

from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.batch import Batch
from mmoe.datasets.encoded import EncodedData, in_chunks, join
from mmoe.datasets.encoder import FeatureEncoder
from mmoe.datasets.keys import GroupCodes
from mmoe.datasets.labels import encode_labels
from mmoe.datasets.prefetch import prefetch
from mmoe.datasets.projection import column_uses
from mmoe.datasets.rows import find_column
from mmoe.datasets.share import WHOLE, Share
from mmoe.datasets.stream.order import Window, row_order, window_rows, windows
from mmoe.datasets.stream.split import PieceReader, Split

# A window is made while another is trained on; chunks of evaluation are smaller
_WINDOWS_AHEAD, _CHUNKS_AHEAD = 1, 2


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

    def epoch_batches(
        self, seed: int, epoch: int, size: int, first: int = 0, share: Share = WHOLE
    ) -> Generator[Batch]:
        """The batches of an epoch from number `first` on; made ahead in the background.

        Args:
            seed: Of the run.
            epoch: Counted from 0.
            size: Rows of a batch; the epoch's last one may have fewer.
            first: Batches that are done.
            share: What this rank takes of each batch; it may be no row.
        """
        batches = self._batches(seed, epoch, size, first, share)
        return prefetch(batches, self.streaming.read_ahead_batches)

    def _batches(
        self, seed: int, epoch: int, size: int, first: int, share: Share
    ) -> Generator[Batch]:
        rows = window_rows(self.streaming.shuffle_buffer_rows, size)
        counts_P = self.split.counts_P
        interleave = self.streaming.interleave
        plan = list(windows(counts_P, rows, seed, epoch, first * size, interleave))
        filled = prefetch(self._fill(plan), _WINDOWS_AHEAD)
        try:
            for window, data in zip(plan, filled, strict=True):
                order = row_order(window, seed, epoch)
                for start in range(max(first * size - window.start, 0), len(order), size):
                    yield data.batch(share.of(order[start : start + size]))
                del data  # the next window may take its place
        finally:
            filled.close()

    def _fill(self, plan: list[Window]) -> Iterator[EncodedData]:
        """Reads and encodes windows; one that holds the whole split is kept for every epoch."""
        if self._everything is not None:
            yield self._everything
            return
        reader = PieceReader(self.split, self.columns)
        for window in plan:
            tables = (table for take in window.takes for table in reader.take(take))
            data = join([self._encode(table) for table in tables])
            if len(data) == len(self):
                self._everything = data
            yield data
            del data  # not held here while the next is made

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
