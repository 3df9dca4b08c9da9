"""Decides whether a config's splits are streamed, opens them, and fits the encoder to the first."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, SplitConfig
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import file_columns
from mmoe.datasets.files.parquet_files import parquet_bytes
from mmoe.datasets.files.readers import column_names
from mmoe.datasets.files.resolve import kind_of, resolve_files
from mmoe.datasets.labels.encode import TrainableCheck, encode_labels, find_groups, with_curves
from mmoe.datasets.labels.maturity import Maturity, found_maturity, maturity_of, time_of
from mmoe.datasets.rows.batch_source import BatchSource, Windows, encode_rows
from mmoe.datasets.rows.encoded import EncodedData, EncodedLabels, in_chunks, join
from mmoe.datasets.rows.order import Lane, window_rows
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.rows.projection import column_uses, required_columns, text_cells
from mmoe.datasets.rows.sources import files_by_split, one_path, refuse_shared_files, with_names
from mmoe.datasets.rows.splits import ALL_TRAIN, Splitter, copies_in, fit_splitter, refuse_empty
from mmoe.datasets.stream.source import PieceReader, Split, StreamSource, count_splits, survey
from mmoe.datasets.values.keys import GroupCodes

_MEGABYTE = 1_000_000


def wants_stream(config: RunConfig, data: str | Path | None = None) -> bool:
    """Returns whether to stream: by `data.input`, or where that is auto by bytes.

    Args:
        config: Of the run.
        data: Other rows than those of the config.

    Raises:
        ValueError: The rows come from no files, but `data.input` is stream.
    """
    section = config.data
    if section.source != "files":
        if section.input == "stream":
            raise ValueError(
                f"data.input: stream reads files, but data.source is {section.source}; set "
                "data.input: auto, or data.source: files with data.path"
            )
        return False
    if section.input != "auto":
        return section.input == "stream"
    names = ("train", "validation", "test") if section.split.by == "file" else ("path",)
    configured = [getattr(section, name) for name in names]
    configured = [p for one in configured for p in ([one] if isinstance(one, str) else one or [])]
    left = section.streaming.above_mb * _MEGABYTE
    for path in [data] if data else configured:
        for file in resolve_files(with_names(config, path)):
            left -= _bytes(file, config)
            if left >= 0:
                continue
            if config.compared_group is not None:
                raise ValueError(
                    f"data.input: auto streams more than {section.streaming.above_mb:,} MB, but "
                    "tasks of kinds bpr, softmax and jrc need the rows of each "
                    f"{config.compared_group!r} in one batch; set data.input: memory (or a higher "
                    "data.streaming.above_mb)"
                )
            return True
    return False


def _bytes(file: DataFile, config: RunConfig) -> int:
    stored = replace(file, lake=None)  # a file of a lake table is one of Parquet
    if kind_of(stored) != "parquet":
        return file.size()
    columns = required_columns(config, file_columns(file))
    return parquet_bytes(stored, [*columns, *([file.candidates] if file.candidates else [])])


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

        Args:
            first: The first row, in the order of the files.
            stop: The one after the last.
        """
        return prefetch(in_chunks(self._chunks(first, stop), self.chunk_rows), _CHUNKS_AHEAD)

    def windows(self, schedule: Sequence[Windows], lanes: Sequence[Lane]) -> Iterator[EncodedData]:
        """Yields the rows of each window, those of the first lane first.

        Args:
            schedule: Of each window, what each lane reads.
            lanes: Those that this rank reads.
        """
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
            yield self._no_rows(None if self.group is None else np.zeros(0, np.int64))
            return
        groups, origin = GroupCodes(), self.split.source.origin
        for at, table in self._tables(first, stop):
            mine = slice(max(first - at, 0), stop - at)
            groups_N = None
            if self.group is not None:
                groups_N = groups.codes(find_groups(table, self.group, origin))[mine]
            if table[mine].num_rows:
                yield self._encode(table[mine], groups_N)

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

    def _no_rows(self, groups_N: np.ndarray | None = None) -> EncodedData:
        """Returns the encoded rows of a rank whose share is empty."""
        schema = self.split.source.schema
        return self._encode(schema.empty_table().select(self.columns), groups_N)

    def _encode(self, table: pa.Table, groups_N: np.ndarray | None = None) -> EncodedData:
        origin = self.split.source.origin
        data = encode_rows(table, self.encoder, origin, self.config, maturity=self.maturity)
        assert data.labels is not None
        return replace(data, labels=replace(data.labels, groups_N=groups_N))


_NAMES = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class StreamSplits:
    """The three splits of a run, none of them in memory.

    Attributes:
        config: Of the run.
        train: Pieces of files, and which of their rows.
        validation: Likewise.
        test: Likewise.
        origin: What the user calls the data.
        maturity: When labels were collected; None: none matures, or nobody has looked yet.
    """

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
            times = times_in(self.config, [source for source, _ in self._by_source()])
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
        """Returns the split `name`, encoded while it is read; `fit` has looked at its rows.

        Args:
            name: `train`, `validation` or `test`.
            encoder: Fitted.
        """
        training = "values" if name == "train" else None
        encoder = replace(encoder, checked=True, training=training)
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

    def _by_source(self) -> list[tuple[StreamSource, list[tuple[str, Split]]]]:
        """Each source once, with the names and the splits that are made of it."""
        found: dict[int, tuple[StreamSource, list[tuple[str, Split]]]] = {}
        for name in _NAMES:
            split: Split = getattr(self, name)
            found.setdefault(id(split.source), (split.source, []))[1].append((name, split))
        return list(found.values())

    def _tables(self) -> Iterator[tuple[pa.Table, str]]:
        """Rows of every chunk and the split they are in; each source is read once."""
        for source, splits in self._by_source():
            splitter = splits[0][1].splitter
            for piece in source.pieces:
                for number, table in source.read(piece, source.schema.names):
                    split_N = splitter.of(table, number, table.num_rows)
                    for name, split in splits:
                        rows_N = split_N == split.number
                        if rows_N.all():
                            yield table, name
                        elif rows_N.any():
                            yield table.filter(pa.array(rows_N)), name


def times_in(config: RunConfig, sources: Iterable[StreamSource]) -> Iterator[tuple[pa.Table, str]]:
    """Yields the times of all rows of sources, as `maturity_of` takes them."""
    name = time_of(config).column
    assert name is not None, "a config with matures_after has one"
    for source in sources:
        for _, table in source.tables([name]):
            yield table, source.origin


def open_stream(config: RunConfig) -> StreamSplits:
    """Finds the files of a run and how they are split.

    Args:
        config: `data.path`, or with `split.by: file` `data.train`, `data.validation`, `data.test`.

    Raises:
        ValueError: Files are missing, damaged or differ, or cannot be split.
    """
    if config.data.split.by == "file":
        return _by_file(config)
    paths = one_path(config, None)
    uses = column_uses(config, column_names(paths))
    chunk, cells = config.data.streaming.chunk_rows, text_cells(config)
    source = survey(paths, uses, chunk, cells=cells)
    split, requests = config.data.split, config.data.requests
    repeated = config.data.repeated_rows
    splitter = fit_splitter(source.rows, split, config.split_seed, requests, repeated)
    counts_P3 = count_splits(source, splitter, split, requests)
    refuse_empty(counts_P3.sum(axis=0), split, source.origin)
    return _opened(config, _numbered(source, splitter, counts_P3, _NAMES), source.origin)


def _by_file(config: RunConfig) -> StreamSplits:
    """Training and test files; without validation files its share is drawn from training."""
    paths = files_by_split(config, None)
    refuse_shared_files(paths)
    uses = column_uses(config, column_names(paths["train"]))
    chunk, cells = config.data.streaming.chunk_rows, text_cells(config)
    sources = {
        name: survey(paths[name], uses, chunk, infer_types=name == "train", cells=cells)
        for name in paths
    }
    copies: dict[str, np.ndarray] = {}
    if config.data.repeated_rows == "drop":
        found = copies_in([source.rows for source in sources.values()])
        copies = dict(zip(sources, found, strict=True))
    splits = {name: _whole(source, copies.get(name)) for name, source in sources.items()}
    if "validation" not in splits:
        share = SplitConfig(by="random", validation=config.data.split.validation, test=1e-9)
        splits |= _carved(sources["train"], share, config, copies.get("train"))
    counts = [len(splits[name]) for name in _NAMES]
    refuse_empty(counts, config.data.split, sources["train"].origin)
    origins = [source.origin for source in sources.values()]
    return _opened(config, splits, f"{origins[0]} (and {', '.join(origins[1:])})")


def _opened(config: RunConfig, splits: dict[str, Split], origin: str) -> StreamSplits:
    train, validation, test = (splits[name] for name in _NAMES)
    return StreamSplits(config=config, train=train, validation=validation, test=test, origin=origin)


def _whole(source: StreamSource, copies_N: np.ndarray | None = None) -> Split:
    splitter = ALL_TRAIN.without_copies(copies_N)
    counts_P = count_splits(source, splitter, SplitConfig())[:, 0]
    return Split(source=source, splitter=splitter, number=0, counts_P=counts_P)


def _carved(
    source: StreamSource, share: SplitConfig, config: RunConfig, copies_N: np.ndarray | None
) -> dict[str, Split]:
    """A random validation share out of the training rows."""
    found = fit_splitter(source.rows, share, config.split_seed, config.data.requests)
    splitter = found.without_test().without_copies(copies_N)
    counts_P3 = count_splits(source, splitter, share, config.data.requests)
    return _numbered(source, splitter, counts_P3, ("train", "validation"))


def _numbered(
    source: StreamSource, splitter: Splitter, counts_P3: np.ndarray, names: Sequence[str]
) -> dict[str, Split]:
    return {
        name: Split(source=source, splitter=splitter, number=number, counts_P=counts_P3[:, number])
        for number, name in enumerate(names)
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
