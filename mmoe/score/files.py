"""Scores files: what `mmoe.datasets.files` reads in, Parquet out, in bounded memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.config.tasks import TaskConfig, prediction_columns
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import file_types
from mmoe.datasets.files.readers import (
    Paths,
    column_names,
    iter_tables,
    largest_in_file,
    signed_where_it_fits,
    widen,
)
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.locations import MissingColumnError, missing_column
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.sources import with_names
from mmoe.datasets.rows.unseen_ids import UnseenIds
from mmoe.datasets.values.arrow import check_room
from mmoe.datasets.values.plain import is_text, plain_type
from mmoe.embeddings import memory_of_tables
from mmoe.parallel import from_all, from_first, launched_ranks, rank
from mmoe.predictor import Predictor, load_predictor
from mmoe.run.atomic_files import check_new_file, not_written
from mmoe.run.console import Reporter, SilentReporter, Tracker
from mmoe.run.directory import RunDirectory
from mmoe.run.protected_paths import check_not_of_run, check_not_read
from mmoe.run.temporaries import remove_dead, temporary_beside
from mmoe.score.output_columns import output_columns, output_schema
from mmoe.score.output_folder import FolderJob, folder_job, is_one_file
from mmoe.score.provenance import (
    Provenance,
    as_metadata,
    as_unseen_ids,
    provenance_of,
    with_input,
)

# Rows decoded and held at a time: 64k rows of 200 columns are some 100 MB.
ROWS_PER_CHUNK = 65_536


def score_files(
    run: RunDirectory,
    source: str | Path,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    resume: bool = False,
    reporter: Reporter | None = None,
    device: DeviceKind = "auto",
    table_precision: ScoringPrecision | None = None,
) -> int:
    """Scores files: writes Parquet with a column `pred_<task>` for each task, rows in order.

    A name that ends in .parquet (or .pq) is one file for all rows. Any other is a folder, which
    gets a file for each file that was read, `00000-NAME.parquet`, `00001-NAME.parquet` and so on.
    Several ranks (torchrun) share these files out. Every file is written beside its final name and
    moved there when complete, and holds a note of what scored it (metadata `mmoe.scored_by`), and
    one of how many rows had ids that training had not (`mmoe.unseen_ids`).

    Args:
        run: A trained run; its best checkpoint scores.
        source: Parquet, CSV, JSON lines or Arrow: a file, a folder or a glob.
        output: The Parquet file, or the folder, to write.
        keep: Input columns to copy, in this order, before the predictions.
        overwrite: Replace `output` where it exists, file by file when the new one is complete; what
            is read, what the run is made of and files of a folder that hold no scores are refused.
        resume: Leave files of the folder alone that an interrupted call has written.
        reporter: Told of progress.
        device: To score on; auto: a GPU where there is one.
        table_precision: int8 or fp16: tables in fewer bits; None: as they were trained.

    Returns:
        The number of rows written.

    Raises:
        ValueError: The input lacks a column, the output exists or is what is read, another model
            or precision has scored what is to be resumed, a value cannot be used, or there is no
            such device.
    """
    check_room()
    output, reporter = Path(output), reporter or SilentReporter()
    one_file, by = is_one_file(output), provenance_of(run, table_precision, keep)
    if one_file:
        _check_output(run, source, output, overwrite, resume)
        job = FolderJob([], 0, 0)
    else:
        job = folder_job(run, source, output, by, overwrite=overwrite, resume=resume)
    predictor, encoder, config = load_predictor(run, device, table_precision=table_precision)
    if provenance_of(run, table_precision, keep) != by:
        raise ValueError(
            f"{run.path}: was trained while it was read; score again when that is over"
        )
    if rank() > 0:
        reporter = SilentReporter()
    if table_precision is not None:
        reporter.say(memory_of_tables(encoder.tables, table_precision))
    tasks = prediction_columns(config.tasks)
    rows_of = partial(with_names, config.data)
    _check_kept(keep, tasks, column_names(rows_of(str(source))), str(source))
    scorer = _Scorer(
        predictor,
        encoder,
        config.tasks,
        kept_types=_kept_types(rows_of(str(source)), keep),
        uses=dict.fromkeys(keep, "--keep") | column_uses(config, labels=False),
        unseen=UnseenIds(encoder),
    )
    with reporter.track("scoring", None, "rows") as tracker:
        if one_file:
            rows = scorer.score(rows_of(str(source)), output, tracker, by)
        else:
            output.mkdir(parents=True, exist_ok=True)
            rows = sum(
                scorer.score(rows_of(file), path, tracker, with_input(by, file))
                for file, path in job.mine
            )
            predictor.help_others(scorer.no_rows(resolve_files(rows_of(str(source)))[0]))
            rows = sum(from_all(rows))
            from_first(job.remove_stale)
    reporter.say(_summary(rows, output, job))
    unseen = _of_all_ranks(scorer.unseen, encoder).text()
    if unseen is not None:
        reporter.say(unseen)
    return rows


def _of_all_ranks(unseen: UnseenIds, encoder: FeatureEncoder) -> UnseenIds:
    total = UnseenIds(encoder)
    for rows, by_feature in from_all((unseen.rows, dict(unseen.by_feature))):
        total.include(rows, by_feature)
    return total


def _name(temporary: Path, output: Path) -> None:
    """Another call, begun meanwhile, takes what is half-written for that of a dead one."""
    try:
        temporary.replace(output)
    except FileNotFoundError:
        raise ValueError(
            f"{output}: was removed while it was written; if another mmoe score writes into "
            f"{output.parent}, let it end first, and then say --resume"
        ) from None


def _summary(rows: int, output: Path, plan: FolderJob) -> str:
    scored = f"{rows:,} rows scored into {output}"
    if not plan.there:
        return scored
    files = f"{plan.there:,} of {plan.files:,} files"
    if plan.there == plan.files:
        return f"nothing left to score: {files} were in {output} already"
    return f"{scored}; {files} were there already"


@dataclass(frozen=True)
class _Scorer:
    """Scores what can be read as tables into one file.

    Attributes:
        tasks: Of the run.
        kept_types: Of the columns to copy.
        uses: Columns to read, each with what needs it.
        unseen: Counts, over all files of this rank.
    """

    predictor: Predictor
    encoder: FeatureEncoder
    tasks: Sequence[TaskConfig]
    kept_types: dict[str, pa.DataType]
    uses: dict[str, str]
    unseen: UnseenIds

    def score(self, source: Paths, output: Path, tracker: Tracker, by: Provenance) -> int:
        """Returns the number of rows; `by` is written into the file."""
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(output)
        unseen = UnseenIds(self.encoder)
        try:
            with _Writer(temporary) as writer:
                for table in iter_tables(source, list(self.uses), ROWS_PER_CHUNK):
                    features = self.encoder.encode(table, str(source), to_score=True)
                    unseen.add(features)
                    chunk = EncodedData(features=features)
                    predictions_NT = self.predictor.predict(chunk, tracker=tracker)
                    result = _result(
                        table, self.kept_types, self.tasks, predictions_NT, str(source)
                    )
                    writer.write(result.replace_schema_metadata(as_metadata(by)))
                writer.note(unseen)
            _name(temporary, output)
        except MissingColumnError as error:
            raise error.needed_by(self.uses[error.name]) from None
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise not_written(output, error) from None
        finally:
            temporary.unlink(missing_ok=True)
        self.unseen.include(unseen.rows, unseen.by_feature)
        return unseen.rows

    def no_rows(self, file: DataFile) -> EncodedData:
        """The features of a file, without its rows."""
        table = next(iter_tables(file, list(self.uses), 1))
        return EncodedData(features=self.encoder.encode(table[:0], str(file), to_score=True))


def _kept_types(source: Paths, keep: Sequence[str]) -> dict[str, pa.DataType]:
    """One type for each kept column over all files, found before anything is written.

    CSV cells are kept as text: what they look like may change from file to file.
    """
    types: dict[str, pa.DataType] = {}
    first: dict[str, DataFile] = {}
    files = resolve_files(source)
    schemas = [file_types(file) for file in files]
    kept = [pa.schema([(name, _kept_type(schema, name)) for name in keep]) for schema in schemas]
    largest = [partial(largest_in_file, file, rows_per_chunk=ROWS_PER_CHUNK) for file in files]
    for file, schema in zip(files, signed_where_it_fits(kept, largest), strict=True):
        for name in keep:
            here = schema.field(name).type
            there = types.setdefault(name, here)
            known = [kind for kind in (there, here) if not pa.types.is_null(kind)]
            mixed = len({pa.types.is_boolean(kind) for kind in known}) > 1  # would make true 1.0
            both = None if mixed else widen(there, here)
            if both is None:
                raise ValueError(
                    f"{file}: column {name!r}, to be kept, holds {here}, but {there} in "
                    f"{first[name]}; write the column with one type, or do not --keep it"
                )
            types[name] = both
            first.setdefault(name, file)
    for name, kind in types.items():
        _refuse_unwritable(name, kind, first[name])
    return types


def _kept_type(schema: pa.Schema, name: str) -> pa.DataType:
    """The type that the column came in, if what is read (plain values) can be cast back to it."""
    kind = schema.field(name).type
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    plain = plain_type(kind)
    if is_text(kind):
        return pa.string()
    if pa.types.is_nested(kind):
        return plain
    try:
        pa.chunked_array([], plain).cast(kind)
    except pa.ArrowException:
        return plain
    return kind


def _refuse_unwritable(name: str, kind: pa.DataType, file: DataFile) -> None:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([(name, kind)])).close()
    except pa.ArrowNotImplementedError:
        raise ValueError(
            f"{file}: column {name!r}, to be kept, holds {kind}, which Parquet cannot store; do "
            "not --keep it"
        ) from None


def _result(
    table: pa.Table,
    kept_types: Mapping[str, pa.DataType],
    tasks: Sequence[TaskConfig],
    predictions_NT: np.ndarray,
    origin: str,
) -> pa.Table:
    kept = table.select(list(kept_types))
    for i, (name, kind) in enumerate(kept_types.items()):
        if kept.column(i).type != kind:
            kept = kept.set_column(i, name, _as_kept(kept.column(i), name, kind, origin))
    schema = output_schema(tasks)
    for name, column_N in output_columns(predictions_NT, tasks).items():
        kept = kept.append_column(name, pa.array(column_N, schema.field(name).type))
    return kept


def _as_kept(column: pa.ChunkedArray, name: str, kind: pa.DataType, origin: str) -> pa.ChunkedArray:
    try:
        return column.cast(kind, safe=pa.types.is_integer(column.type))
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{origin}: column {name!r}, to be kept, holds {column.type} here, but together with "
            f"other files {kind}, which would round it ({error}); write the column with one type, "
            "or do not --keep it"
        ) from None


def _check_output(
    run: RunDirectory, source: str | Path, output: Path, overwrite: bool, resume: bool
) -> None:
    if launched_ranks() > 1:
        raise ValueError(
            f"--output {output}: several ranks write a file for each input file, into a folder: "
            f"say --output {output.with_suffix('')}"
        )
    if resume:
        raise ValueError(
            f"--resume with --output {output}: one file is written whole or not at all; name a "
            "folder to score file by file"
        )
    check_new_file(output, "scores.parquet", overwrite)
    check_not_of_run(output, run)
    check_not_read(output, resolve_files(str(source)), source, folder=False)
    remove_dead(output.parent, output.name)


def _check_kept(
    keep: Sequence[str], tasks: Sequence[str], columns: Sequence[str], origin: str
) -> None:
    for name in keep:
        if name not in columns:
            raise ValueError(missing_column(name, columns, origin, "--keep"))
        if name in tasks:
            raise ValueError(
                f"--keep {name}: the predictions are called that; rename the column in {origin}"
            )


class _Writer:
    """A Parquet file whose schema is that of the first table written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "_Writer":
        return self

    def write(self, table: pa.Table) -> None:
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.path, table.schema, compression="zstd")
        self.writer.write_table(table)

    def note(self, unseen: UnseenIds) -> None:
        """Writes what is known of all rows, after them."""
        # Of pyarrow's releases, older ones cannot add to what they have begun
        if self.writer is not None and hasattr(self.writer, "add_key_value_metadata"):
            self.writer.add_key_value_metadata(as_unseen_ids(unseen.summary()))

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
