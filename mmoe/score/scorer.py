"""`Scorer`: rows of files in, files of scores out, in bounded memory."""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.readers import Paths, iter_tables
from mmoe.datasets.files.row_span import RowSpan
from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures
from mmoe.datasets.rows.locations import MissingColumnError, is_of_request
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.values.plain import plain
from mmoe.predictor import Predictor
from mmoe.process_settings import spared_collections
from mmoe.run.atomic_files import not_written
from mmoe.run.console import Tracker
from mmoe.score.guard.counts import Counter, ScoreCounts, added
from mmoe.score.kept_columns import as_kept
from mmoe.score.output_columns import ScoreColumns
from mmoe.score.parquet_writer import ParquetWriter
from mmoe.score.pipeline import in_order, scoring_threads, small_at_the_end
from mmoe.score.provenance import Provenance, as_metadata
from mmoe.score.top_rows import Top, TopRows

# Rows of a chunk: some 25 MB of 200 columns, of which each thread has one in work
ROWS_PER_CHUNK = 16_384


class Target(Protocol):
    """Where one file of scores goes."""

    def __str__(self) -> str:
        """What the user calls it."""
        ...

    def look(self) -> Provenance:
        """Returns what scores it; looks at what is read, before the first row of it is."""
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


class ToWrite(NamedTuple):
    """One file of scores.

    Attributes:
        source: What is read.
        target: What is written.
        span: Only these rows of one file; None: all.
    """

    source: Paths
    target: Target
    span: RowSpan | None = None


class _Scored(NamedTuple):
    """Rows to write, in order, and what was counted of them."""

    table: pa.Table
    counts: ScoreCounts


class _Chunk(NamedTuple):
    """Rows as they were read and, later, encoded; `origin` starts messages about them."""

    table: pa.Table
    origin: str
    features: EncodedFeatures | None = None


@dataclass(frozen=True)
class Scorer:
    """Scores what can be read as tables into files: reading, predicting and writing at once.

    Attributes:
        predictor: Of the run.
        encoder: Of the run.
        columns: To write beside the kept ones.
        kept_types: Of the columns to copy.
        uses: Columns to read, each with what needs it.
        counter: Counts rows and scores.
        top: Write the best rows of each key alone; None: all rows, in their order.
    """

    predictor: Predictor
    encoder: FeatureEncoder
    columns: ScoreColumns
    kept_types: dict[str, pa.DataType]
    uses: dict[str, str]
    counter: Counter
    top: Top | None = None

    def score(self, files: Sequence[ToWrite], tracker: Tracker) -> ScoreCounts:
        """Writes the files one after another, each whole or not at all; counts their rows.

        The rows of the next file are read and scored while one is written.

        Args:
            files: To write.
            tracker: Told of every chunk of rows that is done.

        Raises:
            ValueError: A value cannot be used, or a column is missing; names file and row.
            OSError: A file cannot be written; those before it are there.
        """
        looked: deque[Provenance] = deque()
        with spared_collections(), closing(self._scored(files, looked)) as scored:
            return added(self._write(file, scored, looked, tracker) for file in files)

    def no_rows(self, file: Paths) -> EncodedData:
        """The features of a file, without its rows."""
        table = next(iter_tables(file, list(self.uses), 1))
        return EncodedData(features=self.encoder.encode(table[:0], str(file), to_score=True))

    def _write(
        self,
        file: ToWrite,
        scored: Iterator[_Scored | None],
        looked: "deque[Provenance]",
        tracker: Tracker,
    ) -> ScoreCounts:
        """Takes what is of this file, up to the None behind it."""
        written, counts = file.target.begin(), ScoreCounts()
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
                writer.note(file.target.notes(counts))
            self._finish(file, written, by, counts)
        except MissingColumnError as error:
            raise error.needed_by(self.uses[error.name]) from None
        except OSError as error:
            written.unlink(missing_ok=True)
            raise not_written(str(file.target), error, folder=written.parent) from None
        finally:
            written.unlink(missing_ok=True)
        return counts

    def _finish(self, file: ToWrite, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        try:
            file.target.finish(written, by, counts)
        except FileNotFoundError:
            raise ValueError(
                f"{file.target}: was removed while it was written; if another mmoe score writes "
                "there, let it end first, and then say --resume"
            ) from None

    def _scored(
        self, files: Sequence[ToWrite], looked: "deque[Provenance]"
    ) -> Generator[_Scored | None]:
        """Rows of all files in order; None behind those of each."""
        alone = self.predictor.any_height and self.predictor.ranks == 1
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
        self, files: Sequence[ToWrite], looked: "deque[Provenance]", alone: bool
    ) -> Generator[_Chunk | None]:
        for file in files:
            looked.append(file.target.look())
            tables = iter_tables(file.source, list(self.uses), ROWS_PER_CHUNK, file.span)
            # Of each file, not the last alone: its bytes are the same whatever is scored with it
            for table in small_at_the_end(tables) if alone else tables:
                yield _Chunk(table, str(file.source))
            yield None

    def _encode(self, chunk: _Chunk | None) -> _Chunk | None:
        if chunk is None:
            return None
        features = self.encoder.encode(chunk.table, chunk.origin, to_score=True)
        return chunk._replace(features=features)

    def _predict(self, chunk: _Chunk | None) -> _Scored | None:
        if chunk is None:
            return None
        assert chunk.features is not None, "it has been encoded"
        predictions_NP = self.predictor.predict(EncodedData(features=chunk.features))
        columns = self.columns.of(predictions_NP, chunk.table, chunk.origin)
        counts = self.counter.count(chunk.features, chunk.table, columns, chunk.origin)
        return _Scored(_result(chunk.table, self.kept_types, columns, chunk.origin), counts)


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
