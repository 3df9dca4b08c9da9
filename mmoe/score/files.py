"""Scores files: what `mmoe.datasets.files` reads in, Parquet out, in bounded memory."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.readers import column_names
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.locations import missing_column
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.sources import with_names
from mmoe.datasets.rows.unseen_ids import UnseenIds
from mmoe.datasets.values.arrow import check_room
from mmoe.embeddings import memory_of_tables
from mmoe.parallel import from_all, from_first, launched_ranks, rank
from mmoe.predictor import load_predictor
from mmoe.run.atomic_files import check_new_file
from mmoe.run.console import Reporter, SilentReporter
from mmoe.run.directory import RunDirectory
from mmoe.run.protected_paths import check_not_of_run, check_not_read
from mmoe.run.temporaries import remove_dead
from mmoe.score.kept_columns import check_kept, kept_types
from mmoe.score.output_columns import ScoreColumns
from mmoe.score.output_folder import FolderJob, Part, folder_job, is_one_file, provenance_of_part
from mmoe.score.provenance import provenance_of
from mmoe.score.scorer import Scorer, ToWrite
from mmoe.score.top_rows import RANK, Top


def score_files(
    run: RunDirectory,
    source: str | Path,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    keep_types: bool = False,
    tasks: Sequence[str] | None = None,
    fused: Mapping[str, str] = MappingProxyType({}),
    overwrite: bool = False,
    resume: bool = False,
    rows_per_file: int | None = None,
    top: Top | None = None,
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
        keep_types: Give kept columns of CSV the type that all their cells have, instead of text.
        tasks: Those whose predictions are written, in the run's order; None: all.
        fused: Further columns by name, computed of predictions and input columns, such as
            `{"value": "click^0.7 * purchase"}`; beside those of the config (`score.fused`).
        overwrite: Replace `output` where it exists, file by file when the new one is complete; what
            is read, what the run is made of and files of a folder that hold no scores are refused.
        resume: Leave files of the folder alone that an interrupted call has written.
        rows_per_file: Into a folder: cut each Parquet file that is read into pieces of so many rows
            (whole scoring batches of them), which ranks share out; None: a piece is a file.
        top: Into one file: write the best rows of each key alone, of all files together, the keys
            in the order in which they come, with their `rank`; None: every row.
        reporter: Told of progress.
        device: To score on; auto: a GPU where there is one.
        table_precision: int8 or fp16: tables in fewer bits; None: as they were trained.

    Returns:
        The number of rows scored.

    Raises:
        ValueError: The input lacks a column, the output exists or is what is read, another model
            or precision has scored what is to be resumed, a value cannot be used, or there is no
            such device.
    """
    check_room()
    output, reporter = Path(output), reporter or SilentReporter()
    keep = list(dict.fromkeys([*([] if top is None else [top.per]), *keep]))
    asked = table_precision, keep, keep_types, tasks, fused
    one_file, by = is_one_file(output), provenance_of(run, *asked)
    if top is not None and not one_file:
        raise ValueError(
            f"--top with --output {output}: the best of all rows are one file; name it, such as "
            f"{output / 'top.parquet'}"
        )
    if one_file:
        _check_output(run, source, output, overwrite, resume, rows_per_file)
        job = FolderJob([Part(file, output) for file in resolve_files(str(source))], 0, 0)
    else:
        job = folder_job(
            run,
            source,
            output,
            by,
            overwrite=overwrite,
            resume=resume,
            rows_per_file=whole_batches(rows_per_file, run.config().training.eval_batch_size),
        )
    predictor, encoder, config = load_predictor(run, device, table_precision=table_precision)
    if provenance_of(run, *asked) != by:
        raise ValueError(
            f"{run.path}: was trained while it was read; score again when that is over"
        )
    if rank() > 0:
        reporter = SilentReporter()
    if table_precision is not None:
        reporter.say(memory_of_tables(encoder.tables, table_precision))
    columns = ScoreColumns(config.tasks, tasks, {**config.score.fused, **fused})
    rows_of = partial(with_names, config.data)
    there = column_names(rows_of(str(source)))
    if top is not None:
        top = columns.check_top(top)
        if top.per not in there:
            raise ValueError(missing_column(top.per, there, str(source), "--per"))
    check_kept(keep, [*columns.names, *([RANK] if top else [])], there, str(source))
    kept = kept_types(rows_of(str(source)), keep, read_text=keep_types)
    if top is not None and pa.types.is_nested(kept[top.per]):
        raise ValueError(
            f"{source}: column {top.per!r} of --per holds {kept[top.per]}; name one of single "
            "values"
        )
    in_folders = sorted(job.partition_columns() & set(keep))
    if in_folders:
        reporter.say(f"kept as folders, not in the files: {', '.join(in_folders)}")
    needed = dict.fromkeys(keep, "--keep") | columns.inputs(there, str(source))
    scorer = Scorer(
        predictor,
        encoder,
        columns,
        kept_types={name: kind for name, kind in kept.items() if name not in in_folders},
        uses=needed | column_uses(config, labels=False),
        unseen=UnseenIds(encoder),
        top=top,
    )
    with reporter.track("scoring", job.rows(), "rows") as tracker:
        if one_file:
            rows = scorer.score([ToWrite(rows_of(str(source)), output, lambda: by)], tracker)
        else:
            output.mkdir(parents=True, exist_ok=True)
            rows = scorer.score(
                [
                    ToWrite(rows_of(p.file), p.output, partial(provenance_of_part, by, p), p.rows)
                    for p in job.mine
                ],
                tracker,
            )
            predictor.help_others(scorer.no_rows(resolve_files(rows_of(str(source)))[0]))
            rows = sum(from_all(rows))
            from_first(job.remove_stale)
    reporter.say(_summary(rows, output, job))
    unseen = _of_all_ranks(scorer.unseen, encoder).text()
    if unseen is not None:
        reporter.say(unseen)
    return rows


def whole_batches(rows: int | None, height: int) -> int | None:
    """Returns how many rows of whole scoring batches so many rows hold, one batch at least.

    Example:
        >>> whole_batches(10_000, 4096)
        8192
    """
    if rows is None:
        return None
    if rows < 1:
        raise ValueError(f"--rows-per-file {rows}: expected a number of rows of at least 1")
    return max(1, rows // height) * height


def _of_all_ranks(unseen: UnseenIds, encoder: FeatureEncoder) -> UnseenIds:
    total = UnseenIds(encoder)
    for rows, by_feature in from_all((unseen.rows, dict(unseen.by_feature))):
        total.include(rows, by_feature)
    return total


def _summary(rows: int, output: Path, plan: FolderJob) -> str:
    scored = f"{rows:,} rows scored into {output}"
    if not plan.there:
        return scored
    files = f"{plan.there:,} of {plan.files:,} files"
    if plan.there == plan.files:
        return f"nothing left to score: {files} were in {output} already"
    return f"{scored}; {files} were there already"


def _check_output(
    run: RunDirectory,
    source: str | Path,
    output: Path,
    overwrite: bool,
    resume: bool,
    rows_per_file: int | None,
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
    if rows_per_file is not None:
        raise ValueError(
            f"--rows-per-file with --output {output}: that is one file; name a folder, such as "
            f"{output.with_suffix('')}"
        )
    check_new_file(output, "scores.parquet", overwrite)
    check_not_of_run(output, run)
    check_not_read(output, resolve_files(str(source)), source, folder=False)
    remove_dead(output.parent, output.name)
