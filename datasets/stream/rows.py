"""One split of a stream: shuffled batches to train on, chunks in file order to evaluate."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.encode import encode_labels, find_groups
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.encoded import EncodedData, in_chunks, join
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.share import WHOLE, Share
from mmoe.datasets.stream.lanes import Lane, LanesOfRank
from mmoe.datasets.stream.order import Window, row_order, window_rows, windows
from mmoe.datasets.stream.split import PieceReader, Split
from mmoe.datasets.values.keys import GroupCodes

# A window is made while another is trained on; chunks of evaluation are smaller
_WINDOWS_AHEAD, _CHUNKS_AHEAD = 1, 2

Windows = tuple[Window, ...]
"""What each of a rank's lanes gives to one window."""


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
        if self.group is not None:  # read in evaluation, but refused before training
            find_groups(split.source.schema.empty_table(), self.group, split.source.origin)
        # Where one window holds the whole split: what these lanes hold of it
        self._everything: tuple[Sequence[Lane], EncodedData] | None = None

    def __len__(self) -> int:
        return len(self.split)

    def chunks(self, first: int = 0, stop: int | None = None) -> Generator[EncodedData]:
        """Rows [first, stop) in file order, with labels and groups, encoded in the background.

        Of the rows before them the group column alone is read: groups are numbered over all rows.
        One chunk comes at least, which may hold no row.
        """
        # Whole batches of the fixed height that predictions are made in
        size = window_rows(self.streaming.chunk_rows, self.config.training.eval_batch_size)
        parts = self._chunks(first, len(self) if stop is None else stop)
        return prefetch(in_chunks(parts, size), _CHUNKS_AHEAD)

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
        lanes, share = LanesOfRank.of(share, self.streaming.lanes)
        plan = self._plan(rows, seed, epoch, first * size, lanes)
        filled = prefetch(self._fill(plan, lanes), _WINDOWS_AHEAD)
        try:
            for parts, data in zip(plan, filled, strict=True):
                orders = [row_order(window, seed, epoch) for window in parts]
                begin, stop = parts[0].start, parts[0].stop
                for start in range(max(first * size, begin), stop, size):
                    end = min(start + size, stop)
                    yield data.batch(_rows_of_batch(parts, orders, start, end, share))
                del data  # the next window may take its place
        finally:
            filled.close()

    def _plan(
        self, rows: int, seed: int, epoch: int, first_row: int, lanes: Sequence[Lane]
    ) -> list[Windows]:
        """The windows from the one that holds `first_row` on, and what each lane gives to them."""
        counts_P, interleave = self.split.counts_P, self.streaming.interleave
        of_lanes = [
            windows(counts_P, rows, seed, epoch, first_row, interleave, lane) for lane in lanes
        ]
        return list(zip(*of_lanes, strict=True))

    def _fill(self, plan: list[Windows], lanes: Sequence[Lane]) -> Iterator[EncodedData]:
        """Reads and encodes windows; one that holds the whole split is kept for every epoch."""
        if self._everything is not None and self._everything[0] == lanes:
            yield self._everything[1]
            return
        # One for each lane: two of them may read one piece, at different places
        readers = [PieceReader(self.split, self.columns) for _ in lanes]
        for parts in plan:
            tables = (
                table
                for window, reader in zip(parts, readers, strict=True)
                for take in window.takes
                for table in reader.take(take)
            )
            data = join([self._encode(table) for table in tables] or [self._no_rows()])
            if parts[0].stop - parts[0].start == len(self):
                self._everything = lanes, data
            yield data
            del data  # not held here while the next is made

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
        """Of a rank whose part of the rows is empty."""
        schema = self.split.source.schema
        return self._encode(schema.empty_table().select(self.columns))

    def _encode(self, table: pa.Table) -> EncodedData:
        origin = self.split.source.origin
        return EncodedData(
            features=self.encoder.encode(table, origin),
            labels=encode_labels(self.config, table, origin),
        )


def _grouped(data: EncodedData, groups_N: np.ndarray | None) -> EncodedData:
    assert data.labels is not None
    return replace(data, labels=replace(data.labels, groups_N=groups_N))


def _rows_of_batch(
    parts: Windows, orders: Sequence[np.ndarray], start: int, stop: int, share: Share
) -> np.ndarray:
    """Where rows [start, stop) of the epoch are among those of the lanes' windows."""
    before, rows = 0, []
    for window, order in zip(parts, orders, strict=True):
        rows_B = order[window.rows_before(start) : window.rows_before(stop)]
        rows.append(before + share.of(rows_B))
        before += len(order)
    return np.concatenate(rows)
