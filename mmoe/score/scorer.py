"""`Scorer`: a table in, a table out; whatever scores rows is an adapter of it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from mmoe.config import DeviceKind, RunConfig, ScoringPrecision
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures
from mmoe.datasets.rows.frames import as_rows
from mmoe.datasets.rows.locations import REQUEST_COLUMN
from mmoe.datasets.rows.projection import required_columns
from mmoe.datasets.values.arrow import plain
from mmoe.predictor import Predictor, load_predictor
from mmoe.run.directory import RunDirectory
from mmoe.score.columns import ScoreColumns

# Rows of a chunk: some 25 MB of 200 columns, of which each thread has one in work
ROWS_PER_CHUNK = 16_384


class Scorer:
    """Scores tables: kept columns, then predictions and what is computed of them, row by row.

    A row's score is the same bits in whatever table it comes (on the CPU, with the operators
    built; see `Predictor`). `mmoe.load` and the estimator ask for `predictions`, Ray and Spark for
    a table (`score`), files for the steps of one, in threads of their own.

    Args:
        predictor: Of `load_predictor`.
        encoder: Likewise.
        config: Likewise.
        tasks: As of `ScoreColumns`.
        keep: Likewise.
        fused: Likewise.

    Raises:
        ValueError: A task that is not there, or a column's name that is taken.
    """

    def __init__(
        self,
        predictor: Predictor,
        encoder: FeatureEncoder,
        config: RunConfig,
        *,
        tasks: Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        fused: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.predictor, self.encoder, self.config = predictor, encoder, config
        self.columns = ScoreColumns(config, tasks=tasks, keep=keep, fused=fused)

    @classmethod
    def load(
        cls,
        run: RunDirectory,
        *,
        tasks: Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        fused: Mapping[str, str] = MappingProxyType({}),
        device: DeviceKind = "auto",
        table_precision: ScoringPrecision | None = None,
        mapped: bool = False,
    ) -> "Scorer":
        """Loads the best model of a run; arguments as of `score_files` and `load_predictor`."""
        loaded = load_predictor(run, device, table_precision=table_precision, mapped=mapped)
        return cls(*loaded, tasks=tasks, keep=keep, fused=fused)

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
        if not rows.num_rows:
            return self.columns.written(there).empty_table()
        read = as_rows(
            rows,
            self.config.data.requests,
            lambda _: [*needed, *keep],
            origin=origin,
            known=required_columns(self.config, labels=False),
        )
        if not read.num_rows:  # requests without candidates
            return self.columns.written(there).empty_table()
        if REQUEST_COLUMN in read.column_names:
            kept = [plain(read[name]).cast(there.field(name).type) for name in keep]
        else:
            kept = [rows[name] for name in keep]
        starts = range(0, read.num_rows, ROWS_PER_CHUNK)  # however many come at once
        chunks = (read.slice(start, ROWS_PER_CHUNK) for start in starts)
        found = pa.concat_tables(pa.table(self.added(chunk, origin)) for chunk in chunks)
        return pa.table([*kept, *found.columns], names=[*keep, *found.column_names])

    def added(self, table: pa.Table, origin: str) -> dict[str, pa.Array]:
        """Returns the columns that are added to rows of the columns that are read."""
        return self.columns.of(self.predictions(table, origin), table, origin)

    def predictions(self, table: pa.Table, origin: str) -> np.ndarray:
        """Returns what `Predictor.predict` does, of rows of the columns that are read."""
        return self.predict(self.encode(table, origin))

    def encode(self, table: pa.Table, origin: str) -> EncodedFeatures:
        """The first half of `predictions`: ids and numbers of rows."""
        return self.encoder.encode(table, origin, to_score=True)

    def predict(self, features: EncodedFeatures) -> np.ndarray:
        """The second half of `predictions`."""
        return self.predictor.predict(EncodedData(features=features))
