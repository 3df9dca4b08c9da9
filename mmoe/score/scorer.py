"""`Scorer`: a table in, a table out; whatever scores rows is an adapter of it."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import DeviceKind, RunConfig, ScoringPrecision, prediction_columns
from mmoe.datasets import EncodedData, EncodedFeatures, FeatureEncoder, required_columns
from mmoe.datasets.rows.frames import as_rows, count_rows, describe_mixed, origin_of, plain_rows
from mmoe.datasets.rows.locations import REQUEST_COLUMN
from mmoe.datasets.values.arrow import plain
from mmoe.errors import warn_caller
from mmoe.predictor import Predictor, load_predictor
from mmoe.run import RunDirectory
from mmoe.score.columns import ScoreColumns
from mmoe.score.provenance import Provenance, model_of
from mmoe.score.top_rows import Top

# Rows of a chunk: some 25 MB of 200 columns, of which each thread has one in work
ROWS_PER_CHUNK = 16_384
# Rows in memory: what a large table needs beside itself. Rows of one request that differ in what
# they share are noticed within so many
_ROWS_AT_A_TIME = 65_536
_FEW = 64  # rows


class _Turns:
    """Calls of few rows take turns: most of their time is the interpreter's, which they would
    fight for (8 threads gave 0.63 of one thread's rows a second).
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        if hasattr(os, "register_at_fork"):  # a thread that a child lacks may have held it
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_TURNS = _Turns()


@dataclass(frozen=True)
class ScoreRequest:
    """Options of a scoring in plain values, from which any process makes the same scorer.

    Attributes:
        source: What is read, as the user calls it.
        keep: Input columns to copy, in this order, before the predictions; None: all there are.
        keep_types: As for `score_files`, as all that follow.
        tasks: Likewise.
        fused: Likewise; None: none.
        top: Likewise.
        device: Likewise.
        table_precision: Likewise.
        budget: Likewise.
    """

    source: str = "rows"
    keep: Sequence[str] | None = ()
    keep_types: bool = False
    tasks: Sequence[str] | None = None
    fused: Mapping[str, str] | None = None
    top: Top | None = None
    device: DeviceKind = "auto"
    table_precision: ScoringPrecision | None = None
    budget: int | None = None

    def provenance(self, run: RunDirectory) -> Provenance:
        """Returns what the scores of a file depend on: the model, its precision, what is written.

        Raises:
            ValueError: The run has no checkpoint.
        """
        tasks, fused = self.tasks, (self.fused or {}).items()
        # Part of the model: folders that were scored without one have no note of it
        within = "" if self.budget is None else f" --budget {self.budget}"
        return {
            "the model": model_of(run) + within,
            "--table-precision": self.table_precision or "none",
            "--keep": ", ".join(self.keep or ()) or "none",
            "--keep-types": "yes" if self.keep_types else "no",
            "--tasks": "all" if tasks is None else ", ".join(sorted(set(tasks))),
            "--fuse": ", ".join(f"{name}={text}" for name, text in fused) or "none",
        }

    def columns(self, config: RunConfig) -> ScoreColumns:
        """Returns the columns to read and to write."""
        return ScoreColumns(config, tasks=self.tasks, keep=self.keep, fused=self.fused)

    def load(self, run: RunDirectory, *, mapped: bool = False) -> "Scorer":
        """Loads the best model of a run.

        Args:
            run: That scores.
            mapped: As for `load_predictor`.

        Raises:
            ValueError: It cannot be loaded.
        """
        loaded = load_predictor(
            run,
            self.device,
            table_precision=self.table_precision,
            budget=self.budget,
            mapped=mapped,
        )
        return Scorer(*loaded, self.columns(loaded[2]))

    def check_same(self, run: RunDirectory, by: Provenance) -> None:
        """Refuses a run that has been trained since it was looked at."""
        if self.provenance(run) != by:
            raise ValueError(
                f"{run.path}: was trained while it was read; score again when that is over"
            )


class Scorer:
    """Scores tables: kept columns, then predictions and what is computed of them, row by row.

    A row's score is the same bits in whatever table it comes (on the CPU, with the operators
    built; see `Predictor`). `mmoe.load` and the estimator ask for predictions, Ray and Spark for
    a table (`score`), files for the steps of one, in threads of their own.

    Args:
        predictor: Of `load_predictor`.
        encoder: Likewise.
        config: Likewise.
        columns: To read and to write.
    """

    def __init__(
        self,
        predictor: Predictor,
        encoder: FeatureEncoder,
        config: RunConfig,
        columns: ScoreColumns,
    ) -> None:
        self.predictor, self.encoder, self.config = predictor, encoder, config
        self.columns = columns
        self.features = required_columns(config, labels=False)
        self._told: set[str] = set()  # of which columns it was said that they are read as text

    def with_columns(self, request: ScoreRequest) -> "Scorer":
        """Returns one with the same model, which writes what is asked for."""
        return Scorer(self.predictor, self.encoder, self.config, request.columns(self.config))

    def score(self, rows: pa.Table, origin: str = "rows") -> pa.Table:
        """Returns the kept columns of some rows as they are, and what is predicted of them.

        Args:
            rows: Any number of them; requests with their candidates in a list have a row for each.
            origin: What the user calls them; starts error messages.

        Raises:
            ValueError: A column is missing, or a value cannot be used.
        """
        there = self.columns.rows_schema(rows.schema, origin)
        needed, keep = self.columns.needs(there.names, origin), self.columns.kept(there.names)
        read = self._read(rows, [*needed, *keep], origin) if rows.num_rows else rows
        if not read.num_rows:  # requests without candidates
            return self.columns.written(there).empty_table()
        if REQUEST_COLUMN in read.column_names:
            kept = [plain(read[name]).cast(there.field(name).type) for name in keep]
        else:
            kept = [rows[name] for name in keep]
        found = pa.concat_tables(
            pa.table(self.columns.of(self.predictions(chunk, origin), chunk, origin))
            for chunk in _chunks(read, ROWS_PER_CHUNK)
        )
        return pa.table([*kept, *found.columns], names=[*keep, *found.column_names])

    def answer(self, rows: Any, origin: str | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Predicts rows in whatever form they come, from any thread.

        Args:
            rows: As for `LoadedRun.predict`.
            origin: What the user calls them; starts error messages.

        Returns:
            What `Predictor.predict` does; of candidates also the number of each one's request.

        Raises:
            ValueError: A column is missing, or a value cannot be used.
        """
        rows = plain_rows(rows)
        if hasattr(rows, "__len__") and not count_rows(rows):
            return np.zeros((0, len(prediction_columns(self.config.tasks))), np.float32), None
        with _TURNS.lock:
            row = self.encoder.encode_row(rows)
            if row is not None:
                return self.predict(row), None
        mixed: list[str] = []
        table = self._read(rows, self.features, origin, mixed)
        new = [name for name in mixed if name not in self._told]
        if new:
            self._told.update(new)
            warn_caller(describe_mixed(new))
        with _TURNS.lock if table.num_rows <= _FEW else nullcontext():
            chunks = _chunks(table, _ROWS_AT_A_TIME)
            found = [self.predictions(c, origin or origin_of(rows)) for c in chunks]
        nested = REQUEST_COLUMN in table.schema.names
        return np.concatenate(found), table[REQUEST_COLUMN].to_numpy() if nested else None

    def _read(
        self, rows: Any, read: Sequence[str], origin: str | None, mixed: list[str] | None = None
    ) -> pa.Table:
        """Reads the needed columns of rows in memory, a row for each candidate."""
        requests, known = self.config.data.requests, self.features
        return as_rows(rows, requests, lambda _: read, origin=origin, mixed=mixed, known=known)

    def predictions(self, table: pa.Table, origin: str) -> np.ndarray:
        """Returns what `Predictor.predict` does, of rows of the columns that are read."""
        return self.predict(self.encoder.encode(table, origin, to_score=True))

    def predict(self, features: EncodedFeatures) -> np.ndarray:
        """Returns the same of rows that are encoded."""
        return self.predictor.predict(EncodedData(features=features))


def _chunks(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    """The same rows, so many at a time that they need little beside them; of none, none."""
    for start in range(0, max(table.num_rows, 1), rows):
        yield table.slice(start, rows)
