"""Opens a config's splits as streams, and fits the encoder to the first of them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, SplitConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.fit_encoder import EncoderFit
from mmoe.datasets.files.readers import column_names
from mmoe.datasets.labels.encode import TrainableCheck, encode_labels
from mmoe.datasets.labels.fit_delays import with_curves
from mmoe.datasets.labels.maturity import Maturity, found_maturity, maturity_of, time_of
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.rows.projection import column_uses, text_cells
from mmoe.datasets.rows.sources import files_by_split, one_path, refuse_shared_files, with_names
from mmoe.datasets.rows.splits import refuse_empty
from mmoe.datasets.stream.rows import StreamRows
from mmoe.datasets.stream.source import StreamSource
from mmoe.datasets.stream.split import Split
from mmoe.datasets.stream.splitters import (
    DroppingSplitter,
    NothingTests,
    Splitter,
    WholeSplitter,
    copies_in,
    count_splits,
    fit_splitter,
)
from mmoe.datasets.stream.survey import survey

_NAMES = ("train", "validation", "test")
_CHUNKS_AHEAD = 2


@dataclass(frozen=True, kw_only=True)
class StreamSplits:
    """The three splits of a run, none of them in memory."""

    config: RunConfig
    train: Split
    validation: Split
    test: Split
    origin: str
    maturity: Maturity | None = None

    def maturing(
        self, maturity: Maturity | None = None, *, leaves_young: bool = False
    ) -> "StreamSplits":
        """Returns the same with when labels were collected: as given, else found in a pass.

        Args:
            maturity: Found before.
            leaves_young: As in `Maturity`.

        Raises:
            ValueError: Rows have no times, or none is old enough.
        """
        if not self.config.delayed_tasks:
            return self
        if maturity is None:
            sources = {id(s.source): s.source for s in (self.train, self.validation, self.test)}
            times = times_in(self.config, sources.values())
            maturity = found_maturity(self.config, times, leaves_young=leaves_young)
            training = (table for table, name in self._tables() if name == "train")
            maturity = with_curves(self.config, maturity, training, self.origin)
        return replace(self, maturity=maturity)

    def fit(
        self,
        advance: Callable[[int], None] | None = None,
        on_training: Callable[[pa.Table], None] | None = None,
        on_labels: Callable[[str, EncodedLabels], None] | None = None,
        on_rows: Callable[[int, pa.Table], None] | None = None,
    ) -> FeatureEncoder:
        """Learns from the training rows and checks the others' values, in one pass.

        Args:
            advance: Told how many more rows are read.
            on_training: Given the training rows, table by table.
            on_labels: Given the name of a split and labels of its rows, likewise.
            on_rows: Given the number of a split and its rows, likewise.

        Raises:
            ValueError: A value does not fit, or a training label has one class only; nothing has
                been written then.
        """
        fit = EncoderFit(self.config, self.origin, self.maturity)
        check = TrainableCheck(self.config, self.maturity)
        with closing(prefetch(self._tables(), _CHUNKS_AHEAD)) as tables:
            for table, name in tables:
                maturity = self._maturity_of(name)
                seen = check if name == "train" else None
                labels = encode_labels(
                    self.config, table, self.origin, maturity=maturity, check=seen
                )
                if on_rows is not None:
                    on_rows(_NAMES.index(name), table)
                if on_labels is not None:
                    on_labels(name, labels)
                if name == "train":
                    fit.add(table, labels, check=True)
                    if on_training is not None:
                        on_training(table)
                else:
                    fit.check(table)
                if advance is not None:
                    advance(table.num_rows)
        check.finish(self.origin)
        return FeatureEncoder.of(fit)

    def rows(self, name: str, encoder: FeatureEncoder) -> BatchSource:
        """Returns the split `name`, encoded while it is read; `fit` has looked at its rows."""
        encoder = replace(encoder, checked=True)
        streaming = self.config.data.streaming
        return BatchSource(
            StreamRows(getattr(self, name), self.config, encoder, self._maturity_of(name)),
            streaming,
            keeps_chunks=self.num_rows <= streaming.shuffle_buffer_rows,
        )

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return list(self.train.source.schema.names)

    @property
    def num_rows(self) -> int:
        """Number of rows of the three splits."""
        return sum(len(getattr(self, name)) for name in _NAMES)

    def fingerprint(self) -> str:
        """Returns a digest of files, their rows and splits, for resuming."""
        digest = sha256()
        for name in _NAMES:
            split: Split = getattr(self, name)
            for piece, count in zip(split.source.pieces, split.counts_P, strict=True):
                digest.update(f"{piece.file.name} {piece.row_group} {piece.rows} {count};".encode())
        return digest.hexdigest()[:16]

    def _maturity_of(self, name: str) -> Maturity | None:
        """Young rows count in training alone."""
        trains = self.maturity is not None and name == "train"
        return self.maturity.weighing() if self.maturity and trains else self.maturity

    def _tables(self) -> Iterator[tuple[pa.Table, str]]:
        """Rows of every chunk and the split they are in; each source is read once."""
        splits: list[Split] = [getattr(self, name) for name in _NAMES]
        for source in dict.fromkeys(id(split.source) for split in splits):
            mine = [n for n in _NAMES if id(getattr(self, n).source) == source]
            first: Split = getattr(self, mine[0])
            columns = first.source.schema.names
            for piece in first.source.pieces:
                for number, table in first.source.read(piece, columns):
                    split_N = first.splitter.of(table, number, table.num_rows)
                    for name in mine:
                        rows_N = split_N == getattr(self, name).number
                        if rows_N.all():
                            yield table, name
                        elif rows_N.any():
                            yield table.filter(pa.array(rows_N)), name


def times_in(config: RunConfig, sources: Iterable[StreamSource]) -> Iterator[tuple[pa.Table, str]]:
    """Yields the times of all rows of sources, as `maturity_of` takes them."""
    name = time_of(config).column
    assert name is not None, "a config with matures_after has one"
    for source in sources:
        for piece in source.pieces:
            for _, table in source.read(piece, [name]):
                yield table, source.origin


def open_stream(config: RunConfig, data: str | Path | None = None) -> StreamSplits:
    """Finds the files of a run and how they are split.

    Args:
        config: `data.path`, or with `split.by: file` `data.train`, `data.validation`, `data.test`.
        data: Instead of `data.path`, or the folder of the three.

    Raises:
        ValueError: Files are missing, damaged or differ, or cannot be split.
    """
    if config.data.split.by == "file":
        return _by_file(config, data)
    paths = one_path(config, data)
    uses = column_uses(config, column_names(paths))
    chunk, cells = config.data.streaming.chunk_rows, text_cells(config)
    source = survey(paths, uses, chunk, cells=cells)
    split, requests = config.data.split, config.data.requests
    repeated = config.data.repeated_rows
    splitter = fit_splitter(source, split, config.split_seed, requests, repeated)
    counts_P3 = count_splits(source, splitter, split, requests)
    refuse_empty(counts_P3.sum(axis=0), split, source.origin)
    train, validation, test = (
        Split(source=source, splitter=splitter, number=number, counts_P=counts_P3[:, number])
        for number in range(3)
    )
    return StreamSplits(
        config=config, train=train, validation=validation, test=test, origin=source.origin
    )


def _by_file(config: RunConfig, folder: str | Path | None) -> StreamSplits:
    """Training and test files; without validation files its share is drawn from training."""
    paths = files_by_split(config, folder)
    refuse_shared_files(paths)
    uses = column_uses(config, column_names(paths["train"]))
    chunk, cells = config.data.streaming.chunk_rows, text_cells(config)
    sources = {
        name: survey(paths[name], uses, chunk, infer_types=name == "train", cells=cells)
        for name in paths
    }
    copies: dict[str, np.ndarray] = {}
    if config.data.repeated_rows == "drop":
        copies = dict(zip(sources, copies_in(list(sources.values())), strict=True))
    splits = {name: _whole(source, copies.get(name)) for name, source in sources.items()}
    if "validation" not in splits:
        share = SplitConfig(by="random", validation=config.data.split.validation, test=1e-9)
        splits |= _carved(sources["train"], share, config, copies.get("train"))
    counts = [len(splits[name]) for name in _NAMES]
    refuse_empty(counts, config.data.split, sources["train"].origin)
    origins = [source.origin for source in sources.values()]
    return StreamSplits(
        config=config,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        origin=f"{origins[0]} (and {', '.join(origins[1:])})",
    )


def _whole(source: StreamSource, copies_N: np.ndarray | None = None) -> Split:
    splitter: Splitter = WholeSplitter()
    if copies_N is not None:
        splitter = DroppingSplitter(splitter, copies_N)
    counts_P = count_splits(source, splitter, SplitConfig())[:, 0]
    return Split(source=source, splitter=splitter, number=0, counts_P=counts_P)


def _carved(
    source: StreamSource, share: SplitConfig, config: RunConfig, copies_N: np.ndarray | None
) -> dict[str, Split]:
    """A random validation share out of the training rows."""
    found = fit_splitter(source, share, config.split_seed, config.data.requests)
    splitter: Splitter = NothingTests(found)
    if copies_N is not None:
        splitter = DroppingSplitter(splitter, copies_N)
    counts_P3 = count_splits(source, splitter, share, config.data.requests)
    return {
        name: Split(source=source, splitter=splitter, number=number, counts_P=counts_P3[:, number])
        for number, name in enumerate(("train", "validation"))
    }


def every_row(
    config: RunConfig, encoder: FeatureEncoder, data: str | Path, as_of: str | None = None
) -> tuple[BatchSource, Maturity | None]:
    """Opens rows of other files than those of the run, to evaluate on.

    Text stays text: types guessed from these rows might differ from those of training.

    Args:
        config: Of the run.
        encoder: Likewise.
        data: The files.
        as_of: When their labels were collected; None: at their newest time.

    Returns:
        The rows, and what is known of when their labels mature.
    """
    # The split's column is not needed: nothing is split here.
    unsplit = config.model_copy(update={"data": config.data.unsplit()})
    rows = with_names(config, data)
    uses = column_uses(unsplit, column_names(rows))
    chunk, cells = config.data.streaming.chunk_rows, text_cells(unsplit)
    source = survey(rows, uses, chunk, infer_types=False, cells=cells)
    maturity = None
    if unsplit.delayed_tasks:
        maturity = maturity_of(unsplit, times_in(unsplit, [source]), as_of=as_of)
    reader = StreamRows(_whole(source), unsplit, encoder, maturity)
    return BatchSource(reader, config.data.streaming), maturity
