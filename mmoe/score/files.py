"""Scores files: what `mmoe.datasets.files` reads in, Parquet out, in bounded memory."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.config.scoring import expectations_of
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.data_file import without_protocol
from mmoe.datasets.rows.columns import UnseenIds
from mmoe.datasets.rows.sources import with_names
from mmoe.datasets.values.arrow import check_room
from mmoe.embeddings import memory_of_tables
from mmoe.parallel import rank
from mmoe.run.console import Reporter, SilentReporter
from mmoe.run.directory import RunDirectory
from mmoe.score.file_scorer import (
    FileScorer,
    InputColumns,
    OneFile,
    Output,
    OutputMode,
    check_one_file,
    count_none,
    into_one_file,
    is_one_file,
)
from mmoe.score.folder import Engine, OfFolder, into_folder
from mmoe.score.folder_start import folder_of
from mmoe.score.guard import Counter, Guard, ScoreCounts, SummaryCallback
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
    fused: Mapping[str, str] = MappingProxyType({}),
    mode: OutputMode = "error",
    resume: bool = False,
    rows_per_file: int | None = None,
    top: Top | None = None,
    reporter: Reporter | None = None,
    device: DeviceKind = "auto",
    table_precision: ScoringPrecision | None = None,
    engine: Engine | None = None,
    expect: Sequence[str] | None = None,
    on_summary: SummaryCallback | None = None,
) -> int:
    """Scores files: writes Parquet with a column `pred_<task>` for each task, rows in order.

    A name that ends in .parquet (or .pq) is one file for all rows. Any other is a folder, or an
    address (`s3://…`), which gets a file for each file read, all published at once; several ranks
    share the files. `mmoe/score/README.md` says more of each option.

    Args:
        run: A trained run; its best checkpoint scores.
        source: Parquet, CSV, JSON lines or Arrow: a file, a folder or a glob.
        output: The Parquet file, or the folder, to write.
        keep: Input columns to copy, in this order, before the predictions.
        keep_types: Give kept columns of CSV the type that all their cells have, instead of text.
        tasks: Those whose predictions are written, in the run's order; None: all.
        fused: Further columns, such as `{"value": "click^0.7 * price"}`; also the config's.
        mode: `error` refuses an existing output; `overwrite`, `overwrite-partitions` replace it.
        resume: Score into the folder what an interrupted call has not, or what changed since.
        rows_per_file: Into a folder: cut Parquet files into pieces of about so many rows; files of
            other formats are one piece each. None: none is cut.
        top: Into one file: only the best rows of each key, with their `rank`; None: all rows.
        reporter: Told of progress.
        device: To score on; auto: a GPU where there is one.
        table_precision: int8 or fp16: tables in fewer bits; None: as they were trained.
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
    request = ScoreRequest(
        str(source), keep, keep_types, tasks, dict(fused), top, device, table_precision
    )
    to = Output(without_protocol(output), mode, resume, rows_per_file)
    said = reporter or SilentReporter()
    return _scored(run, request, to, engine, expect, on_summary, said).rows


def _scored(
    run: RunDirectory,
    request: ScoreRequest,
    to: Output,
    engine: Engine | None,
    expect: Sequence[str] | None,
    on_summary: SummaryCallback | None,
    reporter: Reporter,
) -> ScoreCounts:
    check_room()
    config, by = run.config(), request.provenance(run)
    job = None
    if is_one_file(to.path):
        check_one_file(run, request.source, to, None if engine is None else engine.name)
    else:
        job = folder_of(run, request, to, by)
    scorer = request.load(run) if engine is None else None  # else its processes do
    encoder = FeatureEncoder.load(run.vocabulary) if scorer is None else scorer.encoder
    columns, training = request.columns(config), run.training_columns()
    request.check_same(run, by)
    reporter = reporter if rank() == 0 else SilentReporter()
    if request.table_precision is not None:
        reporter.say(memory_of_tables(encoder.tables, request.table_precision))
    found = InputColumns.of(request, columns, () if job is None else job.partition_columns())
    if found.in_folders:
        reporter.say(f"kept as folders, not in the files: {', '.join(found.in_folders)}")
    expected = config.score.expect if expect is None else expect
    guard = Guard(expectations_of(expected), training, run.predicted(), on_summary)
    # An expectation that names no column is refused now
    guard.judge(count_none(request, Counter(encoder, training), columns, found.there))
    if engine is not None and job is not None:
        with engine.workers(run, request, found, job) as score:
            counts = into_folder(job, guard, reporter, score)
    else:
        assert scorer is not None, "an engine writes folders"
        files, named = FileScorer(scorer, request, found, training), partial(with_names, config)
        if job is None:
            file = OneFile(to.path, named(request.source), by, guard)
            counts = into_one_file(file, reporter, files)
        else:
            mine = [OfFolder(job, part, named(part.file)) for part in job.mine]
            here = partial(files.score, mine, helping=named(job.parts[0].file))
            counts = into_folder(job, guard, reporter, here)
    unseen = UnseenIds(encoder)
    unseen.include(counts.rows, counts.unseen)
    if (text := unseen.text()) is not None:
        reporter.say(text)
    return counts
