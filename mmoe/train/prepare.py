"""Reads the three splits of a config as sources of batches, in memory or streamed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets import BatchSource, EncodedData, FeatureEncoder, Splits, load_splits
from mmoe.datasets.features.encoder import extend_encoder
from mmoe.datasets.files.fingerprint import DataPrint, data_changes, print_data, shown
from mmoe.datasets.labels.maturity import (
    Masked,
    MaskedFit,
    Maturity,
    moment_text,
    refuse_nothing_left,
)
from mmoe.datasets.rows.batch_source import HeldSplits
from mmoe.datasets.rows.order import cut_groups
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.repeats import RepeatCounter, Repeats
from mmoe.datasets.rows.sources import at_versions, generated_splits
from mmoe.datasets.stream import StreamSplits, open_stream, wants_stream
from mmoe.metrics import kind_of
from mmoe.parallel import from_first, rank
from mmoe.train.alarms import SampledTraining

_MOST_NAMED = 12  # features in a note


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """The three splits of a run, and the encoder that was fitted on the first.

    Attributes:
        data: What the rows came from, as it was before and after it was read.
        streamed: The splits are read while they are used.
        fingerprint: Of the files and row groups, where they are streamed: the order of rows.
        sample: Some training rows with labels, for alarms; on rank 0, and not of a stream that is
            not read for its encoder.
        maturity: When the labels were collected; None where none matures.
        masked: How many labels are masked, since their rows are young.
        repeats: How many rows come more than once; on rank 0, and where such rows are kept.
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
    maturity: Maturity | None = None
    masked: Masked = field(default_factory=dict)
    repeats: Repeats | None = None

    @property
    def as_of(self) -> str | None:
        """Time at which the labels were collected, in words; None where none matures."""
        return None if self.maturity is None else moment_text(self.maturity.as_of)

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
    advance: Callable[[int], None] | None = None,
    check: Callable[[DataPrint], None] | None = None,
    matured: tuple[Maturity, Masked] | None = None,
    leaves_young: bool = False,
) -> PreparedData:
    """Reads, splits and encodes the data of a run.

    Args:
        config: Of the run.
        encoder: Of an interrupted run; None fits one on the training split.
        earlier: Of the run that a new one continues: what is fitted extends it.
        splits: Tables that are in memory already.
        advance: Told how many more rows a stream has read.
        check: Given what the rows come from, before they are read; on every rank.
        matured: Of an interrupted run; None finds when labels were collected.
        leaves_young: As in `Maturity`.

    Raises:
        ValueError: Anything is wrong with the data, or it changes while it is read; the message
            names file, column and row.
    """
    given = splits is not None
    config, data, splits = _found(config, splits, check)
    streams, known = splits is None, None if matured is None else matured[0]
    masked: Masked = {} if matured is None else matured[1]
    opened = open_stream(config) if splits is None else HeldSplits(config, splits)
    opened = _matured(opened, known, leaves_young, streams=streams)
    fitting = _Fitting(config, opened, counts_repeats=encoder is None)
    if encoder is None:
        encoder, masked = fitting.fit(earlier, advance)
    if streams:
        refuse_change(config, data)
    train, validation, test = (opened.rows(n, encoder) for n in ("train", "validation", "test"))
    if config.data.split.by == "time" and not given:
        _refuse_one_class(config, train, test, opened.origin)
    if not streams and config.delayed_tasks:
        masked = _masked_in(config, train=train, validation=validation, test=test)
    if not leaves_young:
        refuse_nothing_left(config, masked, opened.origin)
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
        sample=fitting.looked_at.rows(train, encoder) if rank() == 0 else None,
        maturity=opened.maturity,
        masked=masked,
        repeats=None if fitting.repeats is None else fitting.repeats.finish(),
    )


def _refuse_one_class(
    config: RunConfig, train: BatchSource, test: BatchSource, origin: str
) -> None:
    """Refuses test rows in memory by which no event could be judged, though training has both."""
    if train.held is None or test.held is None:
        return
    parts = [data.labels for data in (train.held, test.held)]
    for t, task in enumerate(config.tasks):
        if not (task.weight and kind_of(task.kind).is_event):
            continue
        before, after = (
            np.unique(of.labels_NT[of.observed_NT[:, t], t]) for of in parts if of is not None
        )
        if len(before) > 1 and len(after) == 1:
            raise ValueError(
                f"{origin}: the label of task {task.name!r} is {after[0]:g} on all rows of the "
                f"test part ({len(test):,} rows, split by time), expected both 0 and 1; set a "
                "larger data.split.test, or data.split: {by: random}"
            )


def _found(
    config: RunConfig, splits: Splits | None, check: Callable[[DataPrint], None] | None
) -> tuple[RunConfig, DataPrint, Splits | None]:
    """Looks for the rows, and reads them where they are not streamed.

    Returns:
        The config, with lake tables at the versions that are read; what the rows come from; and
        the tables, None where they are streamed.
    """
    # Ranks that see other files must not part here: what they have read is compared later
    streams = splits is None and from_first(lambda: wants_stream(config))
    if splits is None and not streams:
        splits = generated_splits(config)
    data = print_data(config, splits)
    if check is not None:
        check(data)
    if splits is None:
        config = at_versions(config, data.versions)  # a table may get rows while it is read
    if splits is None and not streams:
        splits = load_splits(config)
        pa.default_memory_pool().release_unused()  # what reading took, before encoding takes more
        refuse_change(config, data)
    return config, data, splits


def _matured(
    opened: StreamSplits | HeldSplits, known: Maturity | None, leaves_young: bool, *, streams: bool
) -> StreamSplits | HeldSplits:
    """The same splits, with labels masked whose rows are young."""
    if streams and known is None:  # a pass of its own, which one rank does for all
        known = from_first(
            lambda: opened.maturing(leaves_young=leaves_young).maturity, takes_long=True
        )
    return opened.maturing(known, leaves_young=leaves_young)


class _Fitting:
    """One pass over the rows, which fits the encoder and counts what only a pass can see.

    Args:
        config: Of the run.
        opened: The rows.
        counts_repeats: Count rows that come more than once.
    """

    def __init__(
        self, config: RunConfig, opened: StreamSplits | HeldSplits, *, counts_repeats: bool
    ) -> None:
        stream = opened if isinstance(opened, StreamSplits) else None
        self.opened, self.streams = opened, stream is not None
        rows = 0 if stream is None else len(stream.train)
        self.looked_at = SampledTraining(config, opened.origin, rows, opened.maturity)
        self.masked = MaskedFit(config)
        self.repeats: RepeatCounter | None = None
        # Where copies are kept; one rank is enough
        if counts_repeats and rank() == 0 and config.data.repeated_rows == "keep":
            used = [c for c in column_uses(config, opened.columns) if c in opened.columns]
            self.repeats = RepeatCounter(opened.num_rows, used)

    def fit(
        self, earlier: FeatureEncoder | None, advance: Callable[[int], None] | None
    ) -> tuple[FeatureEncoder, Masked]:
        """Fits an encoder that extends `earlier`; one rank reads a stream for all."""

        def fit() -> tuple[FeatureEncoder, Masked]:
            fitted = self.opened.fit(
                advance,
                self.looked_at.add if self.streams else None,
                self.masked.add,
                None if self.repeats is None else self.repeats.add,
            )
            if earlier is not None:
                fitted = extend_encoder(fitted, earlier, self.opened.origin)
            return fitted, self.masked.found

        encoder, masked = from_first(fit, takes_long=True) if self.streams else fit()
        return self._learning(encoder), masked

    def _learning(self, encoder: FeatureEncoder) -> FeatureEncoder:
        """Returns an encoder that knows what features of other features learn of training rows."""
        if not encoder.lacks_trees:
            return encoder

        def learnt() -> FeatureEncoder:
            train = self.opened.rows("train", encoder)
            data = train.held or self.looked_at.rows(train, encoder, keep=True)
            assert data is not None and data.labels is not None, "training rows passed by"
            return encoder.learning(data, "values" if train.held is None else "order")

        return from_first(learnt, takes_long=True)


def _masked_in(config: RunConfig, **splits: BatchSource) -> Masked:
    """Counts masked labels of splits in memory."""
    counted = MaskedFit(config)
    for name, rows in splits.items():
        if rows.held is not None and rows.held.labels is not None:
            counted.add(name, rows.held.labels)
    return counted.found


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
    now = print_data(at_versions(config, data.versions))
    changes = data_changes(data, now.among(data) if listed else now)
    if changes:
        raise ValueError(
            f"{data.folder}: {shown(changes)} while it was read; let what writes there end first, "
            "and start again"
        )


def describe_constants(encoder: FeatureEncoder) -> str | None:
    """Returns a note on what says the same in every training row, or nothing; or None."""
    names = encoder.never_varied
    if not names:
        return None
    more = f", … ({len(names)} in all)" if len(names) > _MOST_NAMED else ""
    return (
        f"note: {', '.join(names[:_MOST_NAMED])}{more}: one value, or none, in all training rows; "
        "nothing is learnt of it, and other values change no score"
    )


def describe_cut_groups(config: RunConfig, prepared: PreparedData) -> str | None:
    """Returns a note where a loss compares rows of groups that have more than a batch; or None."""
    held, size = prepared.train.held, config.training.batch_size
    if held is None or held.labels is None or held.labels.compared_N is None:
        return None
    cut = cut_groups(held.labels.compared_N, size)
    if not cut:
        return None
    return (
        f"note: {cut:,} group{'s' * (cut != 1)} of {config.compared_group} with more than {size:,} "
        f"rows (training.batch_size) {'are' if cut != 1 else 'is'} cut, anew in every epoch; rows "
        "are compared within a part"
    )
