"""Opens a config's splits as streams, and fits the encoder to the first of them."""

from collections.abc import Callable, Iterator
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
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.days import NO_SPLIT
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.rows.projection import column_uses, text_columns
from mmoe.datasets.rows.sources import files_by_split, one_path, with_names
from mmoe.datasets.rows.splits import refuse_empty
from mmoe.datasets.stream.rows import StreamRows
from mmoe.datasets.stream.source import StreamSource
from mmoe.datasets.stream.split import Split
from mmoe.datasets.stream.splitters import RandomSplitter, WholeSplitter, count_splits, fit_splitter
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

    def fit(
        self,
        advance: Callable[[int], None] | None = None,
        on_training: Callable[[pa.Table], None] | None = None,
    ) -> FeatureEncoder:
        """Learns from the training rows and checks the others' values, in one pass.

        Args:
            advance: Told how many more rows are read.
            on_training: Given the training rows, table by table.

        Raises:
            ValueError: A value does not fit, or a training label has one class only; nothing has
                been written then.
        """
        fit, check = EncoderFit(self.config, self.origin), TrainableCheck(self.config)
        with closing(prefetch(self._tables(), _CHUNKS_AHEAD)) as tables:
            for table, trains in tables:
                labels = encode_labels(self.config, table, self.origin)
                if trains:
                    fit.add(table)
                    check.add(labels)
                    if on_training is not None:
                        on_training(table)
                else:
                    fit.check(table)
                if advance is not None:
                    advance(table.num_rows)
        check.finish(self.origin)
        return FeatureEncoder.of(fit)

    def rows(self, name: str, encoder: FeatureEncoder) -> BatchSource:
        """Returns the split `name`, encoded while it is read."""
        streaming = self.config.data.streaming
        rows = sum(len(getattr(self, split)) for split in _NAMES)
        return BatchSource(
            StreamRows(getattr(self, name), self.config, encoder),
            streaming,
            keeps_chunks=rows <= streaming.shuffle_buffer_rows,
        )

    def fingerprint(self) -> str:
        """Returns a digest of files, their rows and splits, for resuming."""
        digest = sha256()
        for name in _NAMES:
            split: Split = getattr(self, name)
            for piece, count in zip(split.source.pieces, split.counts_P, strict=True):
                digest.update(f"{piece.file.name} {piece.row_group} {piece.rows} {count};".encode())
        return digest.hexdigest()[:16]

    def _tables(self) -> Iterator[tuple[pa.Table, bool]]:
        """Training rows and the others of every chunk, each source read once."""
        splits: list[Split] = [getattr(self, name) for name in _NAMES]
        for source in dict.fromkeys(id(split.source) for split in splits):
            mine = [split for split in splits if id(split.source) == source]
            first = mine[0]
            columns = first.source.schema.names
            for piece in first.source.pieces:
                for number, table in first.source.read(piece, columns):
                    split_N = first.splitter.of(table, number, table.num_rows)
                    trains_N = (split_N == 0) & (first is self.train)
                    others_N = ~trains_N & (split_N != NO_SPLIT)
                    for rows_N, trains in ((trains_N, True), (others_N, False)):
                        if rows_N.all():
                            yield table, trains
                        elif rows_N.any():
                            yield table.filter(pa.array(rows_N)), trains


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
    chunk, as_text = config.data.streaming.chunk_rows, text_columns(config)
    source = survey(paths, uses, chunk, as_text=as_text)
    splitter = fit_splitter(source, config.data.split, config.split_seed)
    counts_P3 = count_splits(source, splitter)
    refuse_empty(counts_P3.sum(axis=0), config.data.split, source.origin)
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
    uses = column_uses(config, column_names(paths["train"]))
    chunk, as_text = config.data.streaming.chunk_rows, text_columns(config)
    sources = {
        name: survey(paths[name], uses, chunk, infer_types=name == "train", as_text=as_text)
        for name in paths
    }
    splits = {name: _whole(source) for name, source in sources.items()}
    if "validation" not in splits:
        share = SplitConfig(by="random", validation=config.data.split.validation, test=1e-9)
        splits |= _carved(sources["train"], share, config.split_seed)
    origins = [source.origin for source in sources.values()]
    return StreamSplits(
        config=config, **splits, origin=f"{origins[0]} (and {', '.join(origins[1:])})"
    )


def _whole(source: StreamSource) -> Split:
    counts_P = np.array([piece.rows for piece in source.pieces], np.int64)
    return Split(source=source, splitter=WholeSplitter(), number=0, counts_P=counts_P)


def _carved(source: StreamSource, share: SplitConfig, seed: int) -> dict[str, Split]:
    """A random validation share out of the training rows."""
    splitter = RandomSplitter.fit(source.num_rows, share, seed)
    splitter = replace(splitter, cuts=(splitter.cuts[0], 0))  # nothing tests
    counts_P3 = count_splits(source, splitter)
    return {
        name: Split(source=source, splitter=splitter, number=number, counts_P=counts_P3[:, number])
        for number, name in enumerate(("train", "validation"))
    }


def every_row(config: RunConfig, encoder: FeatureEncoder, data: str | Path) -> BatchSource:
    """Opens rows of other files than those of the run, to evaluate on.

    Text stays text: types guessed from these rows might differ from those of training.
    """
    # The split's column is not needed: nothing is split here.
    unsplit = config.model_copy(
        update={"data": config.data.model_copy(update={"split": SplitConfig()})}
    )
    rows = with_names(config.data, data)
    uses = column_uses(unsplit, column_names(rows))
    source = survey(rows, uses, config.data.streaming.chunk_rows, infer_types=False)
    return BatchSource(StreamRows(_whole(source), unsplit, encoder), config.data.streaming)
