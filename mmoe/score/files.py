"""Scores files: what `mmoe.datasets.files` reads in, Parquet out, in bounded memory."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.config.scoring import expectations_of
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.data_file import DataFile, is_address, without_protocol
from mmoe.datasets.files.readers import Paths
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.sources import with_names
from mmoe.datasets.rows.unseen_ids import UnseenIds
from mmoe.datasets.values.arrow import check_room
from mmoe.embeddings import memory_of_tables
from mmoe.parallel import from_all, from_first, launched_ranks, rank
from mmoe.run.atomic_files import check_new_file
from mmoe.run.console import Reporter, SilentReporter, Tracker
from mmoe.run.directory import RunDirectory
from mmoe.run.protected_paths import check_not_of_run, check_not_read, check_not_read_at
from mmoe.run.temporaries import remove_dead
from mmoe.score.asked import Asked
from mmoe.score.engine import Engine, ScoreParts
from mmoe.score.folder_job import FolderJob, OutputMode, Part, rows_of
from mmoe.score.guard.counts import Counter, ScoreCounts, added
from mmoe.score.guard.folder import end_folder
from mmoe.score.guard.guard import Guard, SummaryCallback
from mmoe.score.output_folder import folder_job, is_one_file
from mmoe.score.provenance import Provenance
from mmoe.score.scorer import Scorer, ToWrite
from mmoe.score.store import REJECTED, place_of
from mmoe.score.targets import OfFolder, OneFile
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

    A name that ends in .parquet (or .pq) is one file for all rows, moved to its name when it is
    complete. Any other is a folder, or an address that fsspec knows (`s3://…`), which gets a file
    for each file that was read, `00000-NAME.parquet`, `00001-NAME.parquet` and so on, and when all
    of them are there `_manifest.json` and, last, an empty `_SUCCESS`: until then new files lie in
    `_staging`, and what the folder held stays. Several ranks (torchrun) share the files out. Every
    file holds a note of what scored it (metadata `mmoe.scored_by`), and one of how many rows had
    ids that training had not (`mmoe.unseen_ids`).

    Args:
        run: A trained run; its best checkpoint scores.
        source: Parquet, CSV, JSON lines or Arrow: a file, a folder or a glob.
        output: The Parquet file, or the folder, to write.
        keep: Input columns to copy, in this order, before the predictions.
        keep_types: Give kept columns of CSV the type that all their cells have, instead of text.
        tasks: Those whose predictions are written, in the run's order; None: all.
        fused: Further columns by name, computed of predictions and input columns, such as
            `{"value": "click^0.7 * purchase"}`; beside those of the config (`score.fused`).
        mode: What becomes of an `output` that is there: `error` refuses it, `overwrite` replaces it
            when all new files are complete, `overwrite-partitions` only files in folders such as
            `day=2024-01-31` that get new ones. What is read, what the run is made of and files of a
            folder that hold no scores are refused.
        resume: Score into the folder what an interrupted call has not: parts whose record or bytes
            are not as they were written are scored again.
        rows_per_file: Into a folder: cut each file that is read into pieces of so many rows (whole
            scoring batches of them), which ranks share out; compressed text is one piece. None: a
            piece is a file.
        top: Into one file: write the best rows of each key alone, of all files together, the keys
            in the order in which they come, with their `rank`; None: every row.
        reporter: Told of progress.
        device: To score on; auto: a GPU where there is one.
        table_precision: int8 or fp16: tables in fewer bits; None: as they were trained.
        engine: Whose processes score, into a folder, such as `mmoe.integrations.ray.RayEngine`;
            None: this one.
        expect: What has to hold before scores are published, such as `psi(*) < 0.25`; None: what
            the config says (`score.expect`).
        on_summary: Is given the `Summary` of rows and scores when all are there.

    Returns:
        The number of rows scored.

    Raises:
        ValueError: The input lacks a column, the output exists or is what is read, another model
            or precision has scored what is to be resumed, a value cannot be used, or there is no
            such device.
        Rejected: Scores are not as expected; they lie in `_rejected`, and what was at `output` is
            as it was.
    """
    check_room()
    output, reporter = without_protocol(output), reporter or SilentReporter()
    keep = list(dict.fromkeys([*([] if top is None else [top.per]), *keep]))
    asked = Asked(str(source), keep, keep_types, tasks, dict(fused), top, device, table_precision)
    one_file, by = is_one_file(output), asked.provenance(run)
    if top is not None and not one_file:
        raise ValueError(
            f"--top with --output {output}: the best of all rows are one file; name it, such as "
            f"{output}/top.parquet"
        )
    job = None
    if one_file:
        _check_output(run, source, output, mode, resume, rows_per_file, engine)
    else:
        if rows_per_file is not None:
            asked.check_columns(run.config())
        job = folder_job(
            run,
            source,
            output,
            by,
            mode=mode,
            resume=resume,
            rows_per_file=whole_batches(rows_per_file, run.config().training.eval_batch_size),
        )
    predictor = None
    if engine is None:
        predictor, encoder, config = asked.load(run, by)
    else:  # its processes load the model
        encoder, config = FeatureEncoder.load(run.vocabulary), run.config()
        asked.check_same(run, by)
    if rank() > 0:
        reporter = SilentReporter()
    if table_precision is not None:
        reporter.say(memory_of_tables(encoder.tables, table_precision))
    found = asked.look(config, () if job is None else job.partition_columns())
    if found.in_folders:
        reporter.say(f"kept as folders, not in the files: {', '.join(found.in_folders)}")
    named = partial(with_names, config)
    counter = Counter(encoder, run.training_columns())
    expectations = expectations_of(config.score.expect if expect is None else expect)
    guard = Guard(expectations, counter.training, run.predicted(), on_summary)
    if job is None and any(expected.measure == "repeated" for expected in expectations):
        raise ValueError(
            f"expectation 'repeated' with --output {output}: one file does not say what it was "
            "made of; name a folder"
        )
    guard.judge(asked.nothing(counter, config, found))  # what names no column is refused now
    if predictor is None:
        assert engine is not None and job is not None, "it has been checked"
        with engine.workers(run, asked, found, job) as score_parts:
            counts = _score_folder(job, guard, reporter, score_parts)
    else:
        scorer = asked.scorer(predictor, counter, config, found)
        if job is None:
            counts = _score_one_file(scorer, named(str(source)), output, by, guard, reporter)
        else:
            here = partial(_score_parts, scorer, job, named, resolve_files(str(source))[0])
            counts = _score_folder(job, guard, reporter, here)
    unseen = UnseenIds(encoder)
    unseen.include(counts.rows, counts.unseen)
    if (text := unseen.text()) is not None:
        reporter.say(text)
    return counts.rows


def _score_one_file(
    scorer: Scorer,
    source: Paths,
    output: str | Path,
    by: Provenance,
    guard: Guard,
    reporter: Reporter,
) -> ScoreCounts:
    store, name = place_of(output)
    whole = [Part(file, name) for file in resolve_files(source)]
    with reporter.track("scoring", rows_of(whole), "rows") as tracker:
        target = OneFile(store, name, by, guard)
        counts = scorer.score([ToWrite(source, target)], tracker)
    target.conclude(counts)
    reporter.say(f"{counts.rows:,} rows scored into {output}")
    return counts


def _score_folder(
    job: FolderJob, guard: Guard, reporter: Reporter, score: ScoreParts
) -> ScoreCounts:
    """Has `score` write what is `mine` of a folder, and publishes it when all of it is there."""
    for note in job.notes:
        reporter.say(note)
    if not job.is_complete:
        from_first(job.start)
    try:
        with reporter.track("scoring", job.rows(), "rows") as tracker:
            counts = added(from_all(score(tracker)))
        rejected = None if job.is_complete else f"{job.store.address}/{REJECTED}"
        if not job.is_complete or guard.expectations:
            summary, was_whole = from_first(lambda: end_folder(job, guard), takes_long=True)
            guard.conclude(summary, job.store.address, rejected, was_whole=was_whole)
    except ValueError:
        if rank() == 0:
            job.tidy()
        raise
    finally:
        job.store.unlock()
    reporter.say(_summary(counts.rows, job))
    return counts


def _score_parts(
    scorer: Scorer,
    job: FolderJob,
    named: Callable[[DataFile], Paths],
    any_file: DataFile,
    tracker: Tracker,
) -> ScoreCounts:
    files = [ToWrite(named(p.file), OfFolder(job, p), p.span) for p in job.mine]
    counts = scorer.score(files, tracker)
    scorer.predictor.help_others(scorer.no_rows(named(any_file)))
    return counts


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


def _summary(rows: int, job: FolderJob) -> str:
    scored = f"{rows:,} rows scored into {job.store.address}"
    if not job.done:
        return scored
    files = f"{len(job.done):,} of {len(job.parts):,} files"
    if len(job.done) == len(job.parts):
        return f"nothing left to score: {files} were in {job.store.address} already"
    return f"{scored}; {files} were there already"


def _check_output(
    run: RunDirectory,
    source: str | Path,
    output: str | Path,
    mode: OutputMode,
    resume: bool,
    rows_per_file: int | None,
    engine: Engine | None,
) -> None:
    folder = str(output)[: -len(PurePosixPath(str(output)).suffix)]
    if launched_ranks() > 1:
        raise ValueError(
            f"--output {output}: several ranks write a file for each input file, into a folder: "
            f"say --output {folder}"
        )
    if engine is not None:
        raise ValueError(
            f"--engine {engine.name} with --output {output}: its workers write a file for each "
            f"input file, into a folder: say --output {folder}"
        )
    if resume:
        raise ValueError(
            f"--resume with --output {output}: one file is written whole or not at all; name a "
            "folder to score file by file"
        )
    if rows_per_file is not None:
        raise ValueError(
            f"--rows-per-file with --output {output}: that is one file; name a folder, such as "
            f"{folder}"
        )
    if mode == "overwrite-partitions":
        raise ValueError(
            f"--mode overwrite-partitions with --output {output}: that is one file; name a folder"
        )
    if is_address(str(output)):
        check_not_read_at(str(output), resolve_files(str(source)), str(source), folder=False)
        store, name = place_of(output)
        if mode == "error" and store.has(name):
            raise ValueError(
                f"--output {output}: exists already; choose another name, or say --mode overwrite"
            )
        return
    path = Path(output)
    check_new_file(path, "scores.parquet", mode == "overwrite")
    check_not_of_run(path, run)
    check_not_read(path, resolve_files(str(source)), source, folder=False)
    remove_dead(path.parent, path.name)
