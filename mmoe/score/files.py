"""Scores files: what `mmoe.datasets.files` reads in, Parquet out, in bounded memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.datasets.files.data_file import without_protocol
from mmoe.datasets.values.arrow import check_room
from mmoe.run import Reporter, RunDirectory, SilentReporter
from mmoe.score.file_scorer import Engine, Output, OutputMode, one_file, scored
from mmoe.score.folder_start import folder_job
from mmoe.score.guard import Guard, SummaryCallback
from mmoe.score.scorer import ScoreRequest
from mmoe.score.top_rows import Top


def score_files(
    run: RunDirectory,
    source: str | Path,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    keep_types: bool = False,
    tasks: Sequence[str] | None = None,
    fused: Mapping[str, str] | None = None,
    mode: OutputMode = "error",
    resume: bool = False,
    rows_per_file: int | None = None,
    top: Top | None = None,
    reporter: Reporter | None = None,
    device: DeviceKind = "auto",
    table_precision: ScoringPrecision | None = None,
    budget: int | None = None,
    engine: Engine | None = None,
    expect: Sequence[str] | None = None,
    on_summary: SummaryCallback | None = None,
) -> int:
    """Scores files: writes Parquet with a column `pred_<task>` for each task, rows in order.

    Args:
        run: A trained run; its best checkpoint scores.
        source: Parquet, CSV, JSON lines or Arrow: a file, a folder or a glob.
        output: A .parquet (or .pq) file for all rows; else a folder, or an address (`s3://…`),
            which gets a file for each file read, all published at once; ranks share them.
        keep: Input columns to copy, in this order, before the predictions.
        keep_types: Give kept columns of CSV the type that all their cells have, instead of text.
        tasks: Those whose predictions are written, in the run's order; None: all.
        fused: Further columns, such as `{"value": "click^0.7 * price"}`; also the config's.
        mode: `error` refuses an existing output; `overwrite`, `overwrite-partitions` replace it.
        resume: Score into the folder what an interrupted call has not, or what changed since.
        rows_per_file: Into a folder: cut Parquet files (no others) into pieces of about so many.
        top: Into one file: only the best rows of each key, with their `rank`; None: all rows.
        reporter: Told of progress.
        device: To score on; auto: a GPU where there is one.
        table_precision: int8 or fp16: tables in fewer bits; None: as they were trained.
        budget: Experts that one row computes at most; None: `score.budget` of the run's config.
        engine: Whose processes score a folder, such as `RayEngine`; None: this one.
        expect: Conditions of publishing, such as `psi(*) < 0.25`; None: the config's.
        on_summary: Is given the `Summary` of rows and scores when all are there.

    Returns:
        The number of rows scored.

    Raises:
        ValueError: Input, output or an option cannot be used; the message says which and why.
        Rejected: Scores are not as expected; they lie in `_rejected`, `output` is as it was.
    """
    keep = list(dict.fromkeys([*([] if top is None else [top.per]), *keep]))
    read = str(source)
    asked = ScoreRequest(read, keep, keep_types, tasks, fused, top, device, table_precision, budget)
    to = Output(without_protocol(output), mode, resume, rows_per_file)
    check_room()
    by, guard = asked.provenance(run), Guard.of_run(run, expect, on_summary)
    job = one_file(run, asked, to, by, guard, engine) or folder_job(run, asked, to, by)
    return scored(run, asked, job, guard, engine, reporter or SilentReporter()).rows
