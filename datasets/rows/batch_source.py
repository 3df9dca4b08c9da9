"""Encoded rows of a split, as training, evaluation and scoring read them; splits in memory."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, StreamingConfig
from mmoe.datasets.features.domains import with_domains
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.encode import encode_labels, with_curves
from mmoe.datasets.labels.maturity import Maturity, found_maturity
from mmoe.datasets.labels.targets import with_targets
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.encoded import EncodedData, EncodedLabels
from mmoe.datasets.rows.locations import check_columns, visible_columns
from mmoe.datasets.rows.order import (
    WHOLE,
    GroupOrder,
    Lane,
    LanesOfRank,
    Share,
    Window,
    row_order,
    window_rows,
    windows,
)
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.splits import Splits

# A window is made while another is trained on
_WINDOWS_AHEAD = 1

Windows = tuple[Window, ...]
"""What each of a rank's lanes gives to one window."""


class RowReader(Protocol):
    """Interface of what a `BatchSource` reads rows by: in memory, or encoded while used."""

    @property
    def counts_P(self) -> np.ndarray:
        """Number of rows of each piece."""
        ...

    def windows(self, schedule: Sequence[Windows], lanes: Sequence[Lane]) -> Iterator[EncodedData]:
        """Yields the rows of each window, those of the first lane first."""
        ...

    def chunks(self, first: int, stop: int) -> Generator[EncodedData]:
        """Yields rows [first, stop) in order; one chunk at least, which may hold no row."""
        ...


class BatchSource:
    """Batches of an epoch to train on, and chunks in order to evaluate or score.

    The rows of an epoch come in windows, each shuffled within itself. In memory one window holds
    all rows, which are encoded once. A stream's window has `data.streaming.shuffle_buffer_rows`;
    where one holds the whole split, it is kept for all epochs, and its batches are those in memory,
    bit for bit. Of several windows no more are in memory than the buffer allows, so their rows are
    read and encoded anew in every epoch.

    Args:
        reader: The rows.
        streaming: Rows of a window, its lanes, and batches made ahead.
        keeps_chunks: Keep them for the next pass over the same rows.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age", "standardise": False}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> table = pa.table({"age": [10.0, 20.0, 30.0], "click": [0, 1, 1]})
        >>> encoder = FeatureEncoder.fit(config, table, "log")
        >>> source = BatchSource.of_table(table, encoder, "log", config)
        >>> [len(batch) for batch in source.epoch_batches(seed=0, epoch=0, size=2)]
        [2, 1]
    """

    def __init__(
        self, reader: RowReader, streaming: StreamingConfig, *, keeps_chunks: bool = False
    ) -> None:
        self.reader, self.streaming, self.keeps_chunks = reader, streaming, keeps_chunks
        # What is read once: lanes and the window that holds all their rows; a span and its chunks
        self._window: tuple[Sequence[Lane], EncodedData] | None = None
        self._chunks: tuple[tuple[int, int], list[EncodedData]] | None = None

    @classmethod
    def of(cls, data: EncodedData) -> "BatchSource":
        """Makes a source of rows in memory: one window, one lane."""
        one_window = StreamingConfig(
            shuffle_buffer_rows=max(len(data), 1), interleave=1, read_ahead_batches=2
        )
        return cls(_Held(data), one_window)

    @classmethod
    def of_table(
        cls,
        table: pa.Table,
        encoder: FeatureEncoder,
        origin: str,
        config: RunConfig | None = None,
        *,
        training: bool = False,
        maturity: Maturity | None = None,
    ) -> "BatchSource":
        """Makes a source of the rows of a table, encoded at once.

        Args:
            table: N rows.
            encoder: Fitted.
            origin: What the user calls the data; starts error messages.
            config: Tasks and groups of the labels; None: only scores are wanted.
            training: These rows train: each binary task must have both classes among them.
            maturity: As for `encode_labels`.

        Raises:
            ValueError: A column is missing or a value does not fit; names file, column and row.
        """
        if config is None:
            return cls.of(EncodedData(features=encoder.encode(table, origin, to_score=True)))
        return cls.of(
            encode_rows(table, encoder, origin, config, training=training, maturity=maturity)
        )

    @property
    def held(self) -> EncodedData | None:
        """Rows that are in memory; None of a stream."""
        return self.reader.data if isinstance(self.reader, _Held) else None

    def __len__(self) -> int:
        return int(self.reader.counts_P.sum())

    def chunks(self, first: int = 0, stop: int | None = None) -> Generator[EncodedData]:
        """Yields rows [first, stop) in order, with labels and groups if there are any.

        Rows in memory come at once. One chunk comes at least, which may hold no row.

        Args:
            first: The first row.
            stop: The one after the last; None: the end.
        """
        span = first, len(self) if stop is None else stop
        if self._chunks is not None and self._chunks[0] == span:
            yield from self._chunks[1]
            return
        kept: list[EncodedData] = []
        with closing(self.reader.chunks(*span)) as chunks:
            for chunk in chunks:
                if self.keeps_chunks:
                    kept.append(chunk)
                yield chunk
                del chunk  # not held here while the next is made
        if self.keeps_chunks:
            self._chunks = span, kept

    def epoch_batches(
        self, seed: int, epoch: int, size: int, first: int = 0, share: Share = WHOLE
    ) -> Generator[Batch]:
        """Yields an epoch's batches from number `first` on, made ahead.

        Args:
            seed: Of the run.
            epoch: Counted from 0.
            size: Rows of a batch; the epoch's last one may have fewer. Where a loss compares rows,
                about so many: groups stay whole (`GroupOrder`). Those of a request come one after
                another; the last request of a batch may go on in the next.
            first: Batches that are done.
            share: What this rank takes of each batch; it may be no row.
        """
        held = self.held
        groups_N = None if held is None or held.labels is None else held.labels.compared_N

        def grouped(data: EncodedData, order: GroupOrder) -> Generator[Batch]:
            """Batches with all rows of a group in one of them, and on one rank."""
            for number in range(first, order.batches(size)):
                rows_B, parts_B = order.batch(number, size, share)
                yield data.batch(rows_B, groups_B=parts_B)

        if held is not None and groups_N is not None:
            batches = grouped(held, GroupOrder.of(groups_N, size, seed, epoch))
        else:
            batches = self._batches(seed, epoch, size, first, share)
        return prefetch(batches, self.streaming.read_ahead_batches)

    def _batches(
        self, seed: int, epoch: int, size: int, first: int, share: Share
    ) -> Generator[Batch]:
        rows = window_rows(self.streaming.shuffle_buffer_rows, size)
        lanes, share = LanesOfRank.of(share, self.streaming.lanes)
        # The windows from the one with the first row on, and what each lane gives to them
        counts_P, interleave = self.reader.counts_P, self.streaming.interleave
        of_lanes = [
            windows(counts_P, rows, seed, epoch, first * size, interleave, lane) for lane in lanes
        ]
        schedule = list(zip(*of_lanes, strict=True))
        filled = self._filled(schedule, lanes)
        try:
            for of_lanes, data in zip(schedule, filled, strict=True):
                rows_of = _window_order(of_lanes, data, seed, epoch)
                begin, stop = of_lanes[0].start, of_lanes[0].stop
                for start in range(max(first * size, begin), stop, size):
                    end = min(start + size, stop)
                    yield data.batch(rows_of(start, end, share))
                del data  # the next window may take its place
        finally:
            filled.close()

    def _filled(self, schedule: list[Windows], lanes: Sequence[Lane]) -> Generator[EncodedData]:
        """The windows' rows; those of one that holds the whole split are read once."""
        if not schedule or schedule[0][0].stop - schedule[0][0].start < len(self):
            yield from prefetch(self.reader.windows(schedule, lanes), _WINDOWS_AHEAD)
            return
        if self._window is None or self._window[0] != lanes:
            [data] = self.reader.windows(schedule, lanes)
            self._window = lanes, data
        yield self._window[1]


def encode_rows(
    table: pa.Table,
    encoder: FeatureEncoder,
    origin: str,
    config: RunConfig,
    *,
    training: bool = False,
    maturity: Maturity | None = None,
) -> EncodedData:
    """Encodes features and labels, as `BatchSource.of_table` does."""
    features = encoder.encode(table, origin)
    labels = encode_labels(config, table, origin, training=training, maturity=maturity)
    labels = with_domains(with_targets(labels, features.links), features)
    return EncodedData(features=features, labels=labels)


@dataclass(frozen=True)
class _Held:
    """Rows in memory: one piece."""

    data: EncodedData

    @property
    def counts_P(self) -> np.ndarray:
        return np.array([len(self.data)])

    def windows(self, schedule: Sequence[Windows], lanes: Sequence[Lane]) -> Iterator[EncodedData]:
        yield from [self.data] * len(schedule)

    def chunks(self, first: int, stop: int) -> Generator[EncodedData]:
        yield self.data if (first, stop) == (0, len(self.data)) else self.data.rows(first, stop)


def _window_order(
    of_lanes: Windows, data: EncodedData, seed: int, epoch: int
) -> Callable[[int, int, Share], np.ndarray]:
    """Where a rank's share of rows [start, stop) of the epoch is among those of a window."""
    requests = data.features.requests
    requests_N = None if requests is None else requests.request_N
    before, orders = 0, []
    for window in of_lanes:  # each lane's rows are in an order of their own
        mine = None if requests_N is None else requests_N[before : before + len(window)]
        orders.append(before + row_order(window, seed, epoch, mine))
        before += len(window)

    def rows(start: int, stop: int, share: Share) -> np.ndarray:
        found = []
        for window, order in zip(of_lanes, orders, strict=True):
            rows_B = order[window.rows_before(start) : window.rows_before(stop)]
            requests_B = None if requests_N is None else requests_N[rows_B]
            found.append(share.of(rows_B, requests_B))
        return np.concatenate(found)

    return rows


@dataclass(frozen=True)
class HeldSplits:
    """Tables as splits that can be fitted on and encoded, as those of a stream can."""

    config: RunConfig  # of the run
    splits: Splits  # the tables
    maturity: Maturity | None = None  # when the labels were collected; None: no label matures

    def maturing(
        self, maturity: Maturity | None = None, *, leaves_young: bool = False
    ) -> "HeldSplits":
        """Returns the same with when labels were collected: as given, else found.

        Args:
            maturity: Found before.
            leaves_young: As in `Maturity`.

        Raises:
            ValueError: Rows have no times, or none is old enough.
        """
        if not self.config.delayed_tasks:
            return self
        if maturity is None:
            maturity = found_maturity(
                self.config,
                ((table, self.origin) for table in self.tables),
                self.splits.newest,
                leaves_young=leaves_young,
            )
            maturity = with_curves(self.config, maturity, [self.splits.train], self.origin)
        return replace(self, maturity=maturity)

    @property
    def tables(self) -> list[pa.Table]:
        """Training, validation and test rows."""
        return [self.splits.train, self.splits.validation, self.splits.test]

    @property
    def columns(self) -> list[str]:
        """Names of the user's columns that the training rows have."""
        return visible_columns(self.splits.train)

    @property
    def num_rows(self) -> int:
        """Number of rows of the three splits."""
        return sum(table.num_rows for table in self.tables)

    @property
    def origin(self) -> str:
        """Name that the user gives the data."""
        return self.splits.origin

    def fit(
        self,
        advance: Callable[[int], None] | None = None,
        on_training: Callable[[pa.Table], None] | None = None,
        on_labels: Callable[[str, EncodedLabels], None] | None = None,
        on_rows: Callable[[int, pa.Table], None] | None = None,
    ) -> FeatureEncoder:
        """Fits the encoder to the training rows, which are there: two of the others are not told.

        Raises:
            ValueError: A column is missing, or a value does not fit its feature's kind.
        """
        there = self.splits.train.column_names
        uses = {c: use for c, use in column_uses(self.config, there).items() if c in there}
        for name in ("validation", "test"):
            table = getattr(self.splits, name)
            check_columns(uses, visible_columns(table), f"{self.origin}: {name} rows")
        if on_rows is not None:
            for number, table in enumerate(self.tables):
                on_rows(number, table)
        if on_training is not None:
            on_training(self.splits.train)
        train = self.splits.train
        weighing = None if self.maturity is None else self.maturity.weighing()
        labels = encode_labels(self.config, train, self.origin, maturity=weighing)
        return FeatureEncoder.fit(self.config, train, self.origin, self.maturity, labels)

    def rows(self, name: str, encoder: FeatureEncoder) -> BatchSource:
        """Returns the split `name`, encoded; training labels must hold both classes.

        Raises:
            ValueError: A value does not fit; names file, column and row.
        """
        table, training = getattr(self.splits, name), name == "train"
        maturity = self.maturity
        if maturity is not None and training:
            maturity = maturity.weighing()
        encoder = replace(encoder, training="order" if training else None)
        return BatchSource.of_table(
            table, encoder, self.origin, self.config, training=training, maturity=maturity
        )

    def fingerprint(self) -> str:
        """Returns nothing: which rows there are is seen from the tables."""
        return ""
