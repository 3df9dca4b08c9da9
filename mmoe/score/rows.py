"""`RowScorer`: rows in memory in, the columns that `mmoe score` writes out; engines call it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from mmoe.config import DeviceKind, RunConfig, ScoringPrecision
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.nested import candidate_fields
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.frames import as_rows
from mmoe.datasets.rows.locations import REQUEST_COLUMN
from mmoe.datasets.rows.projection import required_columns
from mmoe.datasets.values.plain import plain
from mmoe.predictor import Predictor, load_predictor
from mmoe.run.directory import RunDirectory
from mmoe.score.kept_columns import check_kept
from mmoe.score.output_columns import ScoreColumns, columns_to_read
from mmoe.score.scorer import ROWS_PER_CHUNK


class RowColumns:
    """Which columns scoring reads, and which it returns: what is known before a model is loaded.

    Args:
        config: Of the run.
        tasks: Those whose predictions are returned; None: all.
        keep: Columns of the input to return before them, in this order; None: all there are.
        fused: Further columns, computed of predictions and columns; beside those of the config.

    Raises:
        ValueError: A task that is not there, or a column's name that is taken.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        tasks: Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        fused: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.config = config
        self.keep = None if keep is None else list(dict.fromkeys(keep))
        self.columns = ScoreColumns(config.tasks, tasks, {**config.score.fused, **fused})

    def needs(self, there: Sequence[str], origin: str = "rows") -> dict[str, str]:
        """Returns the columns of the input that are read, each with what needs it.

        Args:
            there: Columns that the input has.
            origin: What the user calls it; starts error messages.

        Raises:
            ValueError: Some are not there, or a kept one is called like what is added.
        """
        keep = list(there) if self.keep is None else self.keep
        uses = columns_to_read(self.config, self.columns, keep, there, origin)
        check_kept(keep, self.columns.names, there, origin)
        return uses

    def rows_schema(self, rows: pa.Schema, origin: str = "rows") -> pa.Schema:
        """Returns the columns that rows have: those of candidates, where rows are requests.

        Args:
            rows: As they come.
            origin: What the user calls them; starts error messages.

        Raises:
            ValueError: Candidates are no lists of structs.
        """
        requests = self.config.data.requests
        candidates = None if requests is None else requests.candidates
        if candidates is None or candidates not in rows.names:
            return rows
        fields = candidate_fields(
            rows, candidates, origin, required_columns(self.config, labels=False)
        )
        return pa.schema([*(f for f in rows if f.name != candidates), *fields])

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Returns names and types of the columns that `score` returns for rows of a schema."""
        keep = rows.names if self.keep is None else self.keep
        kept = [rows.field(name) for name in keep]
        return pa.schema([*kept, *self.columns.schema])


class RowScorer(RowColumns):
    """Scores Arrow tables, one at a time: kept columns, then predictions, rows in their order.

    A row's score is the same bits in whatever table it comes (on the CPU, with the operators
    built; see `Predictor`).

    Args:
        predictor: Of `load_predictor`.
        encoder: Likewise.
        config: Likewise.
        tasks: As of `RowColumns`.
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
        super().__init__(config, tasks=tasks, keep=keep, fused=fused)
        self.predictor, self.encoder = predictor, encoder

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
    ) -> "RowScorer":
        """Loads the best model of a run; arguments as of `score_files` and `load_predictor`."""
        loaded = load_predictor(run, device, table_precision=table_precision, mapped=mapped)
        return cls(*loaded, tasks=tasks, keep=keep, fused=fused)

    def score(self, rows: pa.Table, origin: str = "rows") -> pa.Table:
        """Returns the kept columns of some rows as they are, and what is predicted of them.

        Args:
            rows: Any number of them.
            origin: What the user calls them; starts error messages.

        Raises:
            ValueError: A column is missing, or a value cannot be used.
        """
        schema = self.rows_schema(rows.schema, origin)
        needed = list(self.needs(schema.names, origin))
        if not rows.num_rows:
            return self.schema(schema).empty_table()
        keep = schema.names if self.keep is None else self.keep
        read = as_rows(
            rows,
            self.config.data.requests,
            lambda _: [*needed, *keep],
            origin=origin,
            known=required_columns(self.config, labels=False),
        )
        if REQUEST_COLUMN in read.column_names:
            kept = [plain(read[name]).cast(schema.field(name).type) for name in keep]
        else:
            kept = [rows[name] for name in keep]
        if not read.num_rows:  # requests without candidates
            return self.schema(schema).empty_table()
        starts = range(0, read.num_rows, ROWS_PER_CHUNK)  # however many come at once
        scored = [self._chunk(read.slice(start, ROWS_PER_CHUNK), origin) for start in starts]
        found = pa.concat_tables(scored)
        return pa.table([*kept, *found.columns], names=[*keep, *found.column_names])

    def _chunk(self, table: pa.Table, origin: str) -> pa.Table:
        features = self.encoder.encode(table, origin, to_score=True)
        predictions_NP = self.predictor.predict(EncodedData(features=features))
        return pa.table(self.columns.of(predictions_NP, table, origin))
