"""From a config to the three splits as sources of batches, in memory or streamed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.extend_encoder import extend_encoder
from mmoe.datasets.files.changed_data import data_changes, shown
from mmoe.datasets.files.fingerprint import DataPrint, print_data
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.held_splits import HeldSplits
from mmoe.datasets.rows.sources import generated_splits, load_splits
from mmoe.datasets.rows.splits import Splits
from mmoe.datasets.stream import StreamSplits, open_stream, wants_stream
from mmoe.parallel import from_first, rank
from mmoe.train.alarms import SampledTraining


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """The three splits of a run, and the encoder that was fitted on the first.

    Attributes:
        data: What the rows came from, as it was before and after it was read.
        streamed: The splits are read while they are used.
        fingerprint: Of the files and row groups, where they are streamed: the order of rows.
        sample: Some training rows with labels, for alarms; on rank 0, and not of a stream that is
            not read for its encoder.
    """

    encoder: FeatureEncoder
    train: BatchSource
    validation: BatchSource
    test: BatchSource
    oracle: dict[str, np.ndarray] | None
    origin: str
    data: DataPrint
    streamed: bool = False
    fingerprint: str = ""
    sample: EncodedData | None = None

    def of(self, config: RunConfig, encoder: FeatureEncoder | None = None) -> "PreparedData":
        """Returns the same rows for another run.

        Args:
            config: Whose features, tables and tasks are those that were prepared, but for the
                widths and learning rates of tables.
            encoder: Of an interrupted run.

        Raises:
            ValueError: That encoder was fitted on other rows.
        """
        if encoder is None:
            return replace(self, encoder=replace(self.encoder, config=config))
        if encoder.fingerprint() != self.encoder.fingerprint():
            raise ValueError(
                f"{self.origin}: the ids are not those of the interrupted run; resume with the "
                "same data, or choose another --out"
            )
        return replace(self, encoder=encoder)


def prepare(
    config: RunConfig,
    *,
    encoder: FeatureEncoder | None = None,
    earlier: FeatureEncoder | None = None,
    splits: Splits | None = None,
    shared: PreparedData | None = None,
    advance: Callable[[int], None] | None = None,
    check: Callable[[DataPrint], None] | None = None,
) -> PreparedData:
    """Reads, splits and encodes the data of a run.

    Args:
        config: Of the run.
        encoder: Of an interrupted run; None fits one on the training split.
        earlier: Of the run that a new one continues: what is fitted extends it.
        splits: Tables that are in memory already.
        shared: Prepared already, for a run that differs in nothing that rows depend on.
        advance: Told how many more rows a stream has read.
        check: Given what the rows come from, before they are read; on every rank.

    Raises:
        ValueError: Anything is wrong with the data, or it changes while it is read; the message
            names file, column and row.
    """
    if shared is not None:
        if check is not None:
            check(shared.data)
        return shared.of(config, encoder)
    # Ranks that see other files must not part here: what they have read is compared later
    streams = splits is None and from_first(lambda: wants_stream(config))
    if splits is None and not streams:
        splits = generated_splits(config)
    data = print_data(config, splits)
    if check is not None:
        check(data)
    if splits is None and not streams:
        splits = load_splits(config)
        pa.default_memory_pool().release_unused()  # what reading took, before encoding takes more
        refuse_change(config, data)
    opened = open_stream(config) if splits is None else HeldSplits(config, splits)

    streamed = len(opened.train) if isinstance(opened, StreamSplits) else 0
    looked_at = SampledTraining(config, opened.origin, streamed)

    def fit() -> FeatureEncoder:
        fitted = opened.fit(advance, looked_at.add if streams else None)
        return fitted if earlier is None else extend_encoder(fitted, earlier, opened.origin)

    if encoder is None:  # a pass of its own over a stream, which one rank does for all
        encoder = from_first(fit, takes_long=True) if streams else fit()
    if streams:
        refuse_change(config, data)
    train, validation, test = (opened.rows(n, encoder) for n in ("train", "validation", "test"))
    return PreparedData(
        encoder=encoder,
        train=train,
        validation=validation,
        test=test,
        oracle=None if splits is None else splits.oracle,
        origin=opened.origin,
        data=data,
        streamed=streams,
        fingerprint=opened.fingerprint(),
        sample=looked_at.rows(train, encoder) if rank() == 0 else None,
    )


def refuse_change(config: RunConfig, data: DataPrint, *, listed: bool = False) -> None:
    """Refuses files that are no longer what they were before they were read.

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
