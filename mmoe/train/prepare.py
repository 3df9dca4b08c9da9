"""From a config to encoded splits, in memory or streamed."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.extend_encoder import extend_encoder
from mmoe.datasets.files.changed_data import data_changes, shown
from mmoe.datasets.files.fingerprint import DataPrint, print_data
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.share import WHOLE, Share
from mmoe.datasets.rows.sources import generated_splits, load_splits
from mmoe.datasets.rows.splits import Splits
from mmoe.datasets.stream import open_stream, wants_stream
from mmoe.parallel import from_first


class LabelledRows(Protocol):
    """Rows to evaluate on: `EncodedData`, or `StreamRows`."""

    def __len__(self) -> int: ...

    def chunks(self, first: int = 0, stop: int | None = None) -> Generator[EncodedData]:
        """Rows [first, stop) in order; one chunk at least, which may hold no row."""
        ...


class TrainingRows(LabelledRows, Protocol):
    """Rows to train on: `EncodedData`, or `StreamRows`."""

    def epoch_batches(
        self, seed: int, epoch: int, size: int, first: int = 0, share: Share = WHOLE
    ) -> Generator[Batch]:
        """The batches of an epoch from number `first` on, or a rank's share of them."""
        ...


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """The three splits, and the encoder that was fitted on the first.

    Attributes:
        data: What the rows came from, as it was before and after it was read.
        streamed: The splits are read while they are used.
        fingerprint: Of the files and row groups, where they are streamed: the order of rows.
    """

    encoder: FeatureEncoder
    train: TrainingRows
    validation: LabelledRows
    test: LabelledRows
    oracle: dict[str, np.ndarray] | None
    origin: str
    data: DataPrint
    streamed: bool = False
    fingerprint: str = ""


def prepare(
    config: RunConfig,
    *,
    encoder: FeatureEncoder | None = None,
    earlier: FeatureEncoder | None = None,
    splits: Splits | None = None,
    advance: Callable[[int], None] | None = None,
    check: Callable[[DataPrint], None] | None = None,
) -> PreparedData:
    """Reads, splits and encodes the data of a run.

    Args:
        config: Of the run.
        encoder: Of an interrupted run; None fits one on the training split.
        earlier: Of the run that a new one continues: what is fitted extends it.
        splits: Tables that are in memory already.
        advance: Told how many more rows a stream has read.
        check: Given what the rows come from, before they are read; on every rank.

    Raises:
        ValueError: Anything is wrong with the data, or it changes while it is read; the message
            names file, column and row.
    """
    # Ranks that see other files must not part here: what they have read is compared later
    streams = splits is None and from_first(lambda: wants_stream(config))
    if splits is None and not streams:
        splits = generated_splits(config)
    data = print_data(config, splits)
    if check is not None:
        check(data)
    if streams:
        return _prepare_stream(config, data, encoder, earlier, advance)
    if splits is None:
        splits = load_splits(config)
        refuse_change(config, data)
    if encoder is None:
        encoder = FeatureEncoder.fit(config, splits.train, splits.origin)
        encoder = encoder if earlier is None else extend_encoder(encoder, earlier, splits.origin)
    train = encode(config, encoder, splits.train, splits.origin, training=True)
    return PreparedData(
        encoder=encoder,
        train=train,
        validation=encode(config, encoder, splits.validation, splits.origin),
        test=encode(config, encoder, splits.test, splits.origin),
        oracle=splits.oracle,
        origin=splits.origin,
        data=data,
    )


def refuse_change(config: RunConfig, data: DataPrint, *, listed: bool = False) -> None:
    """Whether the files are still what they were before they were read.

    Args:
        config: Says where they are.
        data: What they were.
        listed: They were read from a list made before: ones that have come since do not matter.

    Raises:
        ValueError: One is not; then nobody knows which rows have been read.
    """
    if data.kind == "tables":
        return
    now = print_data(config)
    changes = data_changes(data, now.among(data) if listed else now)
    if changes:
        raise ValueError(
            f"{data.folder}: {shown(changes)} while it was read; let what writes there end first, "
            "and start again"
        )


def encode(
    config: RunConfig,
    encoder: FeatureEncoder,
    table: pa.Table,
    origin: str,
    *,
    training: bool = False,
) -> EncodedData:
    """Features and labels of one table; rows that train must hold both classes of every label."""
    return EncodedData(
        features=encoder.encode(table, origin),
        labels=encode_labels(config, table, origin, training=training),
    )


def _prepare_stream(
    config: RunConfig,
    data: DataPrint,
    encoder: FeatureEncoder | None,
    earlier: FeatureEncoder | None,
    advance: Callable[[int], None] | None,
) -> PreparedData:
    """Fits the encoder in a pass of its own; an interrupted run brings its encoder along.

    Of several ranks the first one fits it for all.
    """
    splits = open_stream(config)

    def fit() -> FeatureEncoder:
        fitted = splits.fit(advance)
        return fitted if earlier is None else extend_encoder(fitted, earlier, splits.origin)

    if encoder is None:
        encoder = from_first(fit, takes_long=True)
    refuse_change(config, data)
    return PreparedData(
        encoder=encoder,
        train=splits.rows("train", encoder),
        validation=splits.rows("validation", encoder),
        test=splits.rows("test", encoder),
        oracle=None,
        origin=splits.origin,
        data=data,
        streamed=True,
        fingerprint=splits.fingerprint(),
    )
