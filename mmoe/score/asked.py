"""`Asked`: what is asked of a scoring, in plain values, which make the same scorer anywhere."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from mmoe.config import DeviceKind, RunConfig, ScoringPrecision
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.readers import column_names, iter_tables
from mmoe.datasets.rows.locations import missing_column
from mmoe.datasets.rows.sources import with_names
from mmoe.predictor import Predictor, load_predictor
from mmoe.run.directory import RunDirectory
from mmoe.score.guard.counts import Counter, ScoreCounts
from mmoe.score.kept_columns import check_kept, kept_types
from mmoe.score.output_columns import ScoreColumns, columns_to_read
from mmoe.score.provenance import Provenance, provenance_of
from mmoe.score.scorer import Scorer
from mmoe.score.top_rows import RANK, Top


class InputColumns(NamedTuple):
    """What was found in the input, before a row of it is read.

    Attributes:
        there: All columns.
        kept: Types of those to copy.
        in_folders: Those to copy that name folders of the output, and so are not in its files.
    """

    there: list[str]
    kept: dict[str, pa.DataType]
    in_folders: list[str]


@dataclass(frozen=True)
class Asked:
    """What is asked of a scoring; it can be sent to another process.

    Attributes:
        source: What is read, as the user calls it.
        keep: As for `score_files`, as all that follow.
        keep_types: Likewise.
        tasks: Likewise.
        fused: Likewise.
        top: Likewise.
        device: Likewise.
        table_precision: Likewise.
    """

    source: str
    keep: Sequence[str] = ()
    keep_types: bool = False
    tasks: Sequence[str] | None = None
    fused: Mapping[str, str] = field(default_factory=dict)
    top: Top | None = None
    device: DeviceKind = "auto"
    table_precision: ScoringPrecision | None = None

    def provenance(self, run: RunDirectory) -> Provenance:
        """Returns what the scores of a file depend on."""
        return provenance_of(
            run, self.table_precision, self.keep, self.keep_types, self.tasks, self.fused
        )

    def load(
        self, run: RunDirectory, by: Provenance
    ) -> tuple[Predictor, FeatureEncoder, RunConfig]:
        """Loads the model.

        Args:
            run: That scores.
            by: What scores, as it was looked at before.

        Raises:
            ValueError: It cannot be loaded, or is another one now.
        """
        loaded = load_predictor(run, self.device, table_precision=self.table_precision)
        self.check_same(run, by)
        return loaded

    def check_same(self, run: RunDirectory, by: Provenance) -> None:
        """Refuses a run that has been trained since it was looked at."""
        if self.provenance(run) != by:
            raise ValueError(
                f"{run.path}: was trained while it was read; score again when that is over"
            )

    def look(self, config: RunConfig, folders: Collection[str] = ()) -> InputColumns:
        """Looks at the columns of the input, and refuses what cannot be written of them.

        Args:
            config: Of the run.
            folders: Columns that name folders of the output.

        Raises:
            ValueError: A column is missing, or its name is taken, or its type cannot be stored.
        """
        rows, keep = with_names(config, self.source), list(self.keep)
        there, columns = column_names(rows), self.columns(config)
        known = set(keep) <= set(there)
        kept = kept_types(rows, keep, read_text=self.keep_types) if known else {}
        if self.top is not None:
            _check_top(columns.check_top(self.top), there, kept, self.source)
        check_kept(keep, [*columns.names, *([RANK] if self.top else [])], there, self.source)
        in_folders = sorted(set(folders) & set(keep))
        kept = {name: kind for name, kind in kept.items() if name not in in_folders}
        return InputColumns(there, kept, in_folders)

    def check_columns(self, config: RunConfig) -> None:
        """Refuses an input that lacks columns, before all of it is looked through.

        Raises:
            ValueError: Some are not there.
        """
        there = column_names(with_names(config, self.source))
        self.uses(config, InputColumns(there, {}, []))

    def columns(self, config: RunConfig) -> ScoreColumns:
        """Returns the columns to write beside the kept ones."""
        return ScoreColumns(config.tasks, self.tasks, {**config.score.fused, **self.fused})

    def uses(self, config: RunConfig, found: InputColumns) -> dict[str, str]:
        """Returns the columns to read, each with what needs it.

        Raises:
            ValueError: Some are not there.
        """
        columns = self.columns(config)
        return columns_to_read(config, columns, self.keep, found.there, self.source, "--keep")

    def nothing(self, counter: Counter, config: RunConfig, found: InputColumns) -> ScoreCounts:
        """Counts none of the rows: which columns there are to be judged.

        Raises:
            ValueError: Columns are missing, or cannot be read.
        """
        rows, uses = with_names(config, self.source), self.uses(config, found)
        table = next(iter_tables(rows, list(uses), 1))[:0]
        features = counter.encoder.encode(table, self.source, to_score=True)
        columns = {f.name: pa.array([], f.type) for f in self.columns(config).schema}
        return counter.count(features, table, columns, self.source)

    def scorer(
        self, predictor: Predictor, counter: Counter, config: RunConfig, found: InputColumns
    ) -> Scorer:
        """Returns what scores, of a model that has been loaded and an input that `look` found."""
        columns = self.columns(config)
        return Scorer(
            predictor,
            counter.encoder,
            columns,
            kept_types=found.kept,
            uses=self.uses(config, found),
            counter=counter,
            top=None if self.top is None else columns.check_top(self.top),
        )


def _check_top(
    top: Top, there: Sequence[str], kept: Mapping[str, pa.DataType], source: str
) -> None:
    if top.per not in there:
        raise ValueError(missing_column(top.per, there, source, "--per"))
    if top.per in kept and pa.types.is_nested(kept[top.per]):
        raise ValueError(
            f"{source}: column {top.per!r} of --per holds {kept[top.per]}; name one of single "
            "values"
        )
