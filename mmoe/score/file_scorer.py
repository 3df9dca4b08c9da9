"""Rows of files in, files of scores out: a `Scorer` between a reader and a writer, in threads."""

import json
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from mmoe.alarms import TrainingColumns
from mmoe.datasets import EncodedData, EncodedFeatures, FeatureEncoder, iter_tables
from mmoe.datasets.files.data_file import DataFile, is_address
from mmoe.datasets.files.parquet_files import parquet_layout
from mmoe.datasets.files.readers import Paths, as_kept, column_names, kept_types
from mmoe.datasets.files.resolve import kind_of, resolve_files
from mmoe.datasets.rows.columns import UnseenIds
from mmoe.datasets.rows.locations import MissingColumnError, is_of_request, missing_column
from mmoe.datasets.rows.prefetch import in_order, prefetch
from mmoe.datasets.rows.sources import with_names
from mmoe.datasets.values.arrow import may_use_threads, plain
from mmoe.embeddings import memory_of_tables
from mmoe.parallel import launched_ranks, rank
from mmoe.process_settings import spared_collections
from mmoe.run import Reporter, RunDirectory, SilentReporter, Tracker
from mmoe.run.atomic_files import check_new_file, not_written, remove_dead
from mmoe.run.store import REJECTED, Store, check_not_read, place_of
from mmoe.score.columns import ScoreColumns
from mmoe.score.guard import Counter, Guard, ScoreCounts, added
from mmoe.score.provenance import SUMMARY_KEY, Provenance, as_metadata, as_unseen_ids
from mmoe.score.scorer import ROWS_PER_CHUNK, Scorer, ScoreRequest
from mmoe.score.top_rows import RANK, TopRows

OutputMode = Literal["error", "overwrite", "overwrite-partitions"]
_PARQUET = (".parquet", ".pq")
_OTHER_FILES = (
    ".csv", ".tsv", ".txt", ".json", ".jsonl", ".arrow", ".feather", ".ipc",
    ".gz", ".bz2", ".zst", ".zip",
)  # fmt: skip
# Files that are asked how many rows they have; each answer of a store takes a while
_MOST_COUNTED = 1000
# What engines that read columns like: DuckDB's own row groups are as large
_ROWS_PER_GROUP = 122_880
# Tables of a file that are cut at its end: what keeps two cores busy, and little to hold back
_CUT, _QUARTERS = 2, 4


class InputColumns(NamedTuple):
    """Columns found in the input, before a row of it is read.

    Attributes:
        uses: Those to read, each with what needs it.
        kept: Types of those to copy.
        in_folders: Those to copy that name folders of the output, and so are not in its files.
    """

    uses: dict[str, str]
    kept: dict[str, pa.DataType]
    in_folders: list[str]

    @classmethod
    def of(
        cls, request: ScoreRequest, columns: ScoreColumns, folders: Collection[str] = ()
    ) -> "InputColumns":
        """Looks at the columns of the input, and refuses what cannot be written of them.

        Args:
            request: What is asked for.
            columns: To read and to write.
            folders: Columns that name folders of the output.

        Raises:
            ValueError: A column is missing, or its name is taken, or its type cannot be stored.
        """
        source, top, keep = request.source, request.top, list(request.keep or ())
        rows = with_names(columns.config, source)
        there = column_names(rows)
        if top is not None:
            columns.check_top(top)
            if top.per not in there:
                raise ValueError(missing_column(top.per, there, source, "--per"))
        uses = columns.needs(there, source, "--keep", [RANK] if top else [])
        kept = kept_types(rows, keep, read_text=request.keep_types) if keep else {}
        if top is not None and pa.types.is_nested(kept[top.per]):
            raise ValueError(
                f"{source}: column {top.per!r} of --per holds {kept[top.per]}; name one of single "
                "values"
            )
        in_folders = sorted(set(folders) & set(keep))
        kept = {name: kind for name, kind in kept.items() if name not in in_folders}
        return cls(uses, kept, in_folders)

    def no_rows(self, source: Paths) -> pa.Table:
        """Returns none of the rows, of the columns to read; refuses what cannot be read."""
        return next(iter_tables(source, list(self.uses), 1))[:0]


class Target(Protocol):
    """One file of scores."""

    @property
    def source(self) -> Paths:
        """Source that is read for it."""
        ...

    @property
    def span(self) -> range | None:
        """Rows by number, of one file; None: all."""
        ...

    def __str__(self) -> str: ...  # what the user calls it

    def look(self) -> Provenance:
        """Looks at the run and the input before the first row is read; returns the provenance."""
        ...

    def begin(self) -> Path:
        """Returns where it is written."""
        ...

    def notes(self, counts: ScoreCounts) -> Mapping[bytes, bytes]:
        """Returns what the file says of its rows, as metadata."""
        ...

    def finish(self, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        """Takes the file when it is complete, written `by` what has scored it."""
        ...


# Scores `mine` of a job: tells of each row that is done, and counts them
ScoreParts = Callable[[Tracker], ScoreCounts]


class Engine(Protocol):
    """Engine that scores a folder, if not this process.

    It writes parts into their places of the job, each with its record, as this process would. The
    job itself is begun, and published, by who asks.
    """

    name: str

    def workers(
        self, run: RunDirectory, request: ScoreRequest, found: InputColumns, job: Any
    ) -> AbstractContextManager[ScoreParts]:
        """Starts its processes, and ends them; nothing is written before `ScoreParts` is called.

        Args:
            run: That scores.
            request: What is asked for.
            found: Of the input.
            job: The `FolderJob`.

        Raises:
            ValueError: They cannot be started, or cannot load the model.
        """
        ...


class Job(Protocol):
    """Where scores go: one file, or a folder of them."""

    @property
    def by(self) -> Provenance:
        """Provenance of the scores, as `look` found it."""
        ...

    def partition_columns(self) -> Collection[str]:
        """Names the columns whose values are folders of the output."""
        ...

    def here(self, files: "FileScorer") -> ScoreParts:
        """Returns what scores it in this process."""
        ...

    def take(self, score: ScoreParts, guard: Guard, reporter: Reporter) -> ScoreCounts:
        """Has `score` write what is to be written, and publishes it if it is as expected."""
        ...


class Output(NamedTuple):
    """Output of scores: where they go, and how; as for `score_files`."""

    path: str | Path
    mode: OutputMode = "error"
    resume: bool = False
    rows_per_file: int | None = None


@dataclass(frozen=True)
class OneFile:
    """A file by itself, which gets its name when it is complete.

    Attributes:
        output: As the user says it.
        source: What is read.
        by: What scores it.
        guard: Judges it.
        span: All rows.
    """

    output: str | Path
    source: Paths
    by: Provenance
    guard: Guard
    span: range | None = None

    def __post_init__(self) -> None:
        if any(found.measure == "repeated" for found in self.guard.expectations):
            raise ValueError(
                f"expectation 'repeated' with --output {self.output}: one file does not say what "
                "it was made of; name a folder"
            )

    def __str__(self) -> str:
        return str(self.output)

    @cached_property
    def place(self) -> tuple[Store, str]:
        """The folder that it lies in, and its name there."""
        return place_of(self.output)

    def partition_columns(self) -> Collection[str]:
        """Names none."""
        return ()

    def here(self, files: "FileScorer") -> ScoreParts:
        """Returns what scores it in this process."""
        return partial(files.score, [self])

    def take(self, score: ScoreParts, guard: Guard, reporter: Reporter) -> ScoreCounts:
        """Has `score` write the file, and shows what it was judged to be."""
        rows = count_rows([(data, None) for data in resolve_files(self.source)])
        with reporter.track("scoring", rows, "rows") as tracker:
            counts = score(tracker)
        store, name = self.place
        place = f"{store.address.rstrip('/')}/{REJECTED}/{name}"
        guard.conclude(guard.judge(counts), str(self), place)
        reporter.say(f"{counts.rows:,} rows scored into {self}")
        return counts

    def look(self) -> Provenance:
        """Returns what scores it."""
        return self.by

    def begin(self) -> Path:
        """Returns a place for it on this machine."""
        store, name = self.place
        return store.begin(name)

    def notes(self, counts: ScoreCounts) -> Mapping[bytes, bytes]:
        """Returns unseen ids, and the summary."""
        summary = json.dumps(self.guard.judge(counts).as_dict())
        return as_unseen_ids(counts.unseen_ids()) | {SUMMARY_KEY: summary.encode()}

    def finish(self, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        """Gives it its name, if it is as expected; else it goes into `_rejected` beside it."""
        store, name = self.place
        if self.guard.judge(counts).failed:
            place = store.begin(f"{REJECTED}/{name}")
            written.replace(place)
            store.put(place, f"{REJECTED}/{name}")
        else:
            store.put(written, name)
            store.remove(f"{REJECTED}/{name}")


def one_file(
    run: RunDirectory,
    request: ScoreRequest,
    to: Output,
    by: Provenance,
    guard: Guard,
    engine: Engine | None,
) -> OneFile | None:
    """Returns the file to write, where the name means one; None: it means a folder.

    Raises:
        ValueError: It means a file that is not Parquet, or one that may not be written, or options
            are those of a folder.
    """
    output, source, suffix = to.path, request.source, PurePosixPath(str(to.path)).suffix
    if suffix.lower() in _OTHER_FILES:
        raise ValueError(
            f"--output {output}: scores are written as Parquet; end the name in .parquet, or name "
            "a folder"
        )
    if suffix.lower() not in _PARQUET:
        return None
    folder = str(output)[: -len(suffix)]
    files = f"write a file for each input file, into a folder: say --output {folder}"
    refused = {
        f"--output {output}: several ranks {files}": launched_ranks() > 1,
        f"--engine {engine and engine.name} with --output {output}: its workers {files}": (
            engine is not None
        ),
        f"--resume with --output {output}: one file is written whole or not at all; name a folder "
        "to score file by file": to.resume,
        f"--rows-per-file with --output {output}: that is one file; name a folder, such as "
        f"{folder}": to.rows_per_file is not None,
        f"--mode overwrite-partitions with --output {output}: that is one file; name a folder": (
            to.mode == "overwrite-partitions"
        ),
    }
    for text, is_so in refused.items():
        if is_so:
            raise ValueError(text)
    if is_address(str(output)):
        store, name = place_of(output)
        if to.mode == "error" and store.has(name):
            raise ValueError(
                f"--output {output}: exists already; choose another name, or say --mode overwrite"
            )
    else:
        check_new_file(Path(output), "scores.parquet", to.mode == "overwrite")
    check_not_read(output, run, resolve_files(source), source, folder=False)
    if not is_address(str(output)):
        remove_dead(Path(output).parent, Path(output).name)
    return OneFile(output, with_names(run.config(), source), by, guard)


def count_rows(read: Sequence[tuple[DataFile, range | None]]) -> int | None:
    """Counts the rows of files, or of spans of them, where files say how many they have.

    Args:
        read: Each file, and which of its rows; None: all. Of very many files None is returned.
    """
    if len(read) > _MOST_COUNTED or any(file.candidates is not None for file, _ in read):
        return None
    counted = 0
    for file, span in read:
        if span is None and kind_of(file) != "parquet":
            return None
        counted += sum(parquet_layout(file)[1]) if span is None else len(span)
    return counted


class _Scored(NamedTuple):
    """Rows to write, in order, and what was counted of them."""

    table: pa.Table
    counts: ScoreCounts


class _Chunk(NamedTuple):
    """Rows as they were read and, later, encoded; `origin` starts messages about them."""

    table: pa.Table
    origin: str
    features: EncodedFeatures | None = None


class FileScorer:
    """Scores what can be read as tables into files: reading, predicting and writing at once.

    Args:
        scorer: Of the run.
        request: What is asked for.
        found: Of the input.
        training: What the run knows of its training rows; None: nothing.
    """

    def __init__(
        self,
        scorer: Scorer,
        request: ScoreRequest,
        found: InputColumns,
        training: TrainingColumns | None,
    ) -> None:
        self.scorer, self.found = scorer, found
        self.counter = Counter(scorer.encoder, training)
        self.top = None if request.top is None else scorer.columns.check_top(request.top)

    def score(
        self, files: Sequence[Target], tracker: Tracker, *, helping: Paths | None = None
    ) -> ScoreCounts:
        """Writes the files one after another, each whole or not at all; counts their rows.

        The rows of the next file are read and scored while one is written.

        Args:
            files: To write.
            tracker: Told of every chunk of rows that is done.
            helping: Any file of the input: takes part in what other ranks score until all is done.

        Raises:
            ValueError: A value cannot be used, or a column is missing; names file and row.
            OSError: A file cannot be written; those before it are there.
        """
        looked: deque[Provenance] = deque()
        with spared_collections(), closing(self._scored(files, looked)) as scored:
            counts = added(self._write(file, scored, looked, tracker) for file in files)
        if helping is not None and self.scorer.predictor.ranks > 1:
            none = self.found.no_rows(helping)
            features = self.scorer.encoder.encode(none, str(helping), to_score=True)
            self.scorer.predictor.help_others(EncodedData(features=features))
        return counts

    def _write(
        self,
        file: Target,
        scored: Iterator[_Scored | None],
        looked: deque[Provenance],
        tracker: Tracker,
    ) -> ScoreCounts:
        """Takes what is of this file, up to the None behind it."""
        written, counts = file.begin(), ScoreCounts()
        best = None if self.top is None else TopRows(self.top)
        try:
            rows = iter(partial(next, scored), None)
            first = next(rows, None)
            by = looked.popleft()  # by the thread that reads, before what it read
            with ParquetWriter(written, as_metadata(by)) as writer:
                for row in chain(() if first is None else (first,), rows):
                    (writer.write if best is None else best.add)(row.table)
                    counts += row.counts
                    tracker.advance(row.table.num_rows)
                if best is not None:
                    writer.write(best.rows())
                writer.note(file.notes(counts))
            self._finish(file, written, by, counts)
        except MissingColumnError as error:
            raise error.needed_by(self.found.uses[error.name]) from None
        except OSError as error:
            written.unlink(missing_ok=True)
            raise not_written(str(file), error, folder=written.parent) from None
        finally:
            written.unlink(missing_ok=True)
        return counts

    def _finish(self, file: Target, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        try:
            file.finish(written, by, counts)
        except FileNotFoundError:
            raise ValueError(
                f"{file}: was removed while it was written; if another mmoe score writes "
                "there, let it end first, and then say --resume"
            ) from None

    def _scored(
        self, files: Sequence[Target], looked: deque[Provenance]
    ) -> Generator[_Scored | None]:
        """Rows of all files in order; None behind those of each."""
        predictor = self.scorer.predictor
        alone = predictor.any_height and predictor.ranks == 1
        threads = scoring_threads(alone=alone)
        chunks = self._chunks(files, looked, alone)
        if alone or not threads:
            return in_order(
                lambda chunk: self._predict(self._encode(chunk)),
                chunks,
                threads,
                one_core_each=True,
            )
        # Ranks take turns, and a device does one thing after another: one thread predicts for all
        encoded = in_order(self._encode, chunks, threads)
        return prefetch(map(self._predict, encoded), 1)

    def _chunks(
        self, files: Sequence[Target], looked: deque[Provenance], alone: bool
    ) -> Generator[_Chunk | None]:
        for file in files:
            looked.append(file.look())
            tables = iter_tables(file.source, list(self.found.uses), ROWS_PER_CHUNK, file.span)
            # Of each file, not the last alone: its bytes are the same whatever is scored with it
            for table in small_at_the_end(tables) if alone else tables:
                yield _Chunk(table, str(file.source))
            yield None

    def _encode(self, chunk: _Chunk | None) -> _Chunk | None:
        if chunk is None:
            return None
        encode = self.scorer.encoder.encode
        return chunk._replace(features=encode(chunk.table, chunk.origin, to_score=True))

    def _predict(self, chunk: _Chunk | None) -> _Scored | None:
        if chunk is None:
            return None
        assert chunk.features is not None, "it has been encoded"
        predictions_NP = self.scorer.predict(chunk.features)
        columns = self.scorer.columns.of(predictions_NP, chunk.table, chunk.origin)
        counts = self.counter.count(chunk.features, chunk.table, columns, chunk.origin)
        return _Scored(_result(chunk.table, self.found.kept, columns, chunk.origin), counts)


def _result(
    table: pa.Table,
    kept_types: Mapping[str, pa.DataType],
    columns: Mapping[str, pa.Array],
    origin: str,
) -> pa.Table:
    cells = {n: plain(table[n]) if is_of_request(table, n) else table[n] for n in kept_types}
    kept = {
        name: cells[name] if cells[name].type == kind else as_kept(cells[name], name, kind, origin)
        for name, kind in kept_types.items()
    }
    return pa.table({**kept, **columns})


def scored(
    run: RunDirectory,
    request: ScoreRequest,
    job: Job,
    guard: Guard,
    engine: Engine | None,
    reporter: Reporter,
) -> ScoreCounts:
    """Scores files; counts their rows.

    Args:
        run: That scores.
        request: What is asked for.
        job: Where the scores go.
        guard: Judges them.
        engine: Whose processes score a folder; None: this one.
        reporter: Told of progress.

    Raises:
        ValueError: The input or an option cannot be used.
        Rejected: Scores are not as expected.
    """
    scorer = request.load(run) if engine is None else None  # else its processes do
    encoder = FeatureEncoder.load(run.vocabulary) if scorer is None else scorer.encoder
    request.check_same(run, job.by)
    reporter = reporter if rank() == 0 else SilentReporter()
    if request.table_precision is not None:
        reporter.say(memory_of_tables(encoder.tables, request.table_precision))
    if scorer is not None and scorer.predictor.leaves_mixture_out:
        reporter.say("no epoch was better than the start: the wide part scores, without experts")
    columns = request.columns(run.config())
    found = InputColumns.of(request, columns, job.partition_columns())
    if found.in_folders:
        reporter.say(f"kept as folders, not in the files: {', '.join(found.in_folders)}")
    none = found.no_rows(with_names(columns.config, request.source))
    guard.check_names(encoder, none, columns.schema, request.source)
    if scorer is not None:
        files = FileScorer(scorer, request, found, guard.training)
        counts = job.take(job.here(files), guard, reporter)
    else:
        assert engine is not None, "it has not been loaded here"
        with engine.workers(run, request, found, job) as score:
            counts = job.take(score, guard, reporter)
    unseen = UnseenIds(encoder)
    unseen.include(counts.rows, counts.unseen)
    if (text := unseen.text()) is not None:
        reporter.say(text)
    return counts


def scoring_threads(*, alone: bool) -> int:
    """Returns how many threads work on chunks; 0: the one that asks does all of it.

    Args:
        alone: Whether a chunk's predictions wait for nobody: no other rank, no one device.
    """
    if not may_use_threads():
        return 0
    return torch.get_num_threads() if alone else 1


def small_at_the_end(tables: Iterable[pa.Table]) -> Generator[pa.Table]:
    """Yields the same rows, the last ones in quarters, so that no thread ends long after others.

    Where it cuts is said by the tables alone, not by how many threads there are: sums over rows,
    and groups of rows in a file, are the same on every machine.

    Args:
        tables: Some rows each; of more than four the last two are cut, and held back until then.
    """
    waiting: deque[pa.Table] = deque()
    for number, table in enumerate(tables):
        waiting.append(table)
        kept = _CUT if number >= 2 * _CUT else 0
        while len(waiting) > kept:
            yield waiting.popleft()
    for table in waiting:
        height = -(-max(table.num_rows, 1) // _QUARTERS)
        for start in range(0, max(table.num_rows, 1), height):
            yield table.slice(start, height)


class ParquetWriter:
    """A Parquet file whose schema is that of the first table written.

    Args:
        path: Is written from the first table on, and complete when the block is left.
        metadata: Of the file.
    """

    def __init__(self, path: Path, metadata: Mapping[bytes, bytes]) -> None:
        self.path, self.metadata = path, metadata
        self.writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def __enter__(self) -> "ParquetWriter":
        return self

    def write(self, table: pa.Table) -> None:
        """Adds rows."""
        table = table.replace_schema_metadata(self.metadata)
        if self.writer is None:
            options: dict[str, Any] = {"use_dictionary": _repeating(table.schema)}
            self.writer = pq.ParquetWriter(self.path, table.schema, compression="zstd", **options)
        self._waiting.append(table)
        if sum(map(len, self._waiting)) >= _ROWS_PER_GROUP:
            self._flush()

    def note(self, metadata: Mapping[bytes, bytes]) -> None:
        """Writes what is known of all rows, after them: further metadata."""
        # Of pyarrow's releases, older ones cannot add to what they have begun
        if self.writer is not None and hasattr(self.writer, "add_key_value_metadata"):
            self.writer.add_key_value_metadata(metadata)

    def _flush(self) -> None:
        if self.writer is not None and self._waiting:
            self.writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        if self.writer is not None:
            self.writer.close()


def _repeating(schema: pa.Schema) -> list[str] | bool:
    """Columns worth a dictionary: not scores, whose dictionary would grow and be given up."""
    if any(pa.types.is_nested(field.type) for field in schema):
        return True  # columns inside others have names of their own
    return [field.name for field in schema if not pa.types.is_floating(field.type)]
