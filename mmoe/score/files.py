"""Scores files: what `mmoe.datasets.files` reads in, Parquet out, in bounded memory."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.config.scoring import expectations_of
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.data_file import is_address, without_protocol
from mmoe.datasets.files.readers import Paths
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.columns import UnseenIds
from mmoe.datasets.rows.sources import with_names
from mmoe.datasets.values.arrow import check_room
from mmoe.embeddings import memory_of_tables
from mmoe.parallel import launched_ranks, rank
from mmoe.run.atomic_files import check_new_file, remove_dead
from mmoe.run.console import Reporter, SilentReporter
from mmoe.run.directory import RunDirectory
from mmoe.run.store import (
    REJECTED,
    Store,
    check_not_of_run,
    check_not_read,
    check_not_read_at,
    place_of,
)
from mmoe.score.file_scorer import FileScorer, ScoreRequest, ToWrite, count_rows
from mmoe.score.folder import Engine, FolderJob, OutputMode, into_folder, score_parts
from mmoe.score.folder_start import folder_job, whole_batches
from mmoe.score.guard import Counter, Guard, ScoreCounts, SummaryCallback
from mmoe.score.provenance import SUMMARY_KEY, Provenance, as_unseen_ids
from mmoe.score.top_rows import Top

_PARQUET = (".parquet", ".pq")
_OTHER_FILES = (
    ".csv", ".tsv", ".txt", ".json", ".jsonl", ".arrow", ".feather", ".ipc",
    ".gz", ".bz2", ".zst", ".zip",
)  # fmt: skip


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
    place = _Output(without_protocol(output), mode, resume, rows_per_file, engine)
    return _scored(run, request, place, (expect, on_summary), reporter or SilentReporter())


class _Output(NamedTuple):
    """Where scores go, and who writes them; as for `score_files`."""

    path: str | Path
    mode: OutputMode
    resume: bool
    rows_per_file: int | None
    engine: Engine | None


def _scored(
    run: RunDirectory,
    request: ScoreRequest,
    output: _Output,
    expected: tuple[Sequence[str] | None, SummaryCallback | None],
    reporter: Reporter,
) -> int:
    check_room()
    one_file, by = is_one_file(output.path), request.provenance(run)
    job = None
    if one_file:
        _check_one_file(run, request.source, output)
    else:
        job = _begun(run, request, output, by)
    if output.engine is None:
        scorer = request.load(run, by)
        encoder, columns = scorer.encoder, scorer.columns
    else:  # its processes load the model
        scorer, encoder = None, FeatureEncoder.load(run.vocabulary)
        columns = request.columns(run.config())
        request.check_same(run, by)
    if rank() > 0:
        reporter = SilentReporter()
    if request.table_precision is not None:
        reporter.say(memory_of_tables(encoder.tables, request.table_precision))
    found = request.look(columns, () if job is None else job.partition_columns())
    if found.in_folders:
        reporter.say(f"kept as folders, not in the files: {', '.join(found.in_folders)}")
    counter = Counter(encoder, run.training_columns())
    guard = _guard(run, columns.config.score.expect, counter, expected, None if job else output)
    # An expectation that names no column is refused now
    guard.judge(request.nothing(counter, columns, found.there))
    if output.engine is not None and job is not None:
        with output.engine.workers(run, request, found, job) as score:
            counts = into_folder(job, guard, reporter, score)
    else:
        assert scorer is not None, "an engine writes folders"
        files, named = (
            FileScorer(scorer, request, found, counter),
            partial(with_names, scorer.config),
        )
        if job is None:
            source = named(request.source)
            counts = _into_one_file(files, source, output.path, by, guard, reporter)
        else:
            here = partial(score_parts, files, job, named, resolve_files(request.source)[0])
            counts = into_folder(job, guard, reporter, here)
    unseen = UnseenIds(encoder)
    unseen.include(counts.rows, counts.unseen)
    if (text := unseen.text()) is not None:
        reporter.say(text)
    return counts.rows


def _begun(run: RunDirectory, request: ScoreRequest, output: _Output, by: Provenance) -> FolderJob:
    if request.top is not None:
        raise ValueError(
            f"--top with --output {output.path}: the best of all rows are one file; name it, such "
            f"as {output.path}/top.parquet"
        )
    config = run.config()
    if output.rows_per_file is not None:
        request.check_columns(config)
    return folder_job(
        run,
        request.source,
        output.path,
        by,
        mode=output.mode,
        resume=output.resume,
        rows_per_file=whole_batches(output.rows_per_file, config.training.eval_batch_size),
    )


def _guard(
    run: RunDirectory,
    usual: Sequence[str],
    counter: Counter,
    expected: tuple[Sequence[str] | None, SummaryCallback | None],
    one_file: _Output | None,
) -> Guard:
    expect, on_summary = expected
    expectations = expectations_of(usual if expect is None else expect)
    if one_file is not None and any(found.measure == "repeated" for found in expectations):
        raise ValueError(
            f"expectation 'repeated' with --output {one_file.path}: one file does not say what it "
            "was made of; name a folder"
        )
    return Guard(expectations, counter.training, run.predicted(), on_summary)


def _into_one_file(
    files: FileScorer,
    source: Paths,
    output: str | Path,
    by: Provenance,
    guard: Guard,
    reporter: Reporter,
) -> ScoreCounts:
    store, name = place_of(output)
    rows = count_rows([(file, None) for file in resolve_files(source)])
    with reporter.track("scoring", rows, "rows") as tracker:
        target = OneFile(store, name, by, guard)
        counts = files.score([ToWrite(source, target)], tracker)
    target.conclude(counts)
    reporter.say(f"{counts.rows:,} rows scored into {output}")
    return counts


@dataclass(frozen=True)
class OneFile:
    """A file by itself, which gets its name when it is complete.

    Attributes:
        store: The folder that it lies in.
        name: Its name there.
        by: What scores it.
        guard: Judges it.
    """

    store: Store
    name: str
    by: Provenance
    guard: Guard

    def __str__(self) -> str:
        """What the user calls it."""
        return f"{self.store.address.rstrip('/')}/{self.name}"

    def look(self) -> Provenance:
        """Returns what scores it."""
        return self.by

    def begin(self) -> Path:
        """Returns a place for it on this machine."""
        return self.store.begin(self.name)

    def notes(self, counts: ScoreCounts) -> Mapping[bytes, bytes]:
        """Returns unseen ids, and the summary."""
        summary = json.dumps(self.guard.judge(counts).as_dict())
        return as_unseen_ids(counts.unseen_ids()) | {SUMMARY_KEY: summary.encode()}

    def finish(self, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        """Gives it its name, if it is as expected; else it goes into `_rejected` beside it."""
        summary, rejected = self.guard.judge(counts), f"{REJECTED}/{self.name}"
        if summary.failed:
            place = self.store.begin(rejected)
            written.replace(place)
            self.store.put(place, rejected)
        else:
            self.store.put(written, self.name)
            self.store.remove(rejected)

    def conclude(self, counts: ScoreCounts) -> None:
        """Shows the summary.

        Raises:
            Rejected: The scores are not as expected.
        """
        rejected = f"{self.store.address.rstrip('/')}/{REJECTED}/{self.name}"
        self.guard.conclude(self.guard.judge(counts), str(self), rejected)


def is_one_file(output: str | Path) -> bool:
    """Returns whether a name means one file; if not, it means a folder.

    Raises:
        ValueError: It means a file that is not Parquet.
    """
    suffix = PurePosixPath(str(output)).suffix.lower()
    if suffix in _OTHER_FILES:
        raise ValueError(
            f"--output {output}: scores are written as Parquet; end the name in .parquet, or name "
            "a folder"
        )
    return suffix in _PARQUET


def _check_one_file(run: RunDirectory, source: str, place: _Output) -> None:
    output, mode, resume, rows_per_file, engine = place
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
        check_not_read_at(str(output), resolve_files(source), source, folder=False)
        store, name = place_of(output)
        if mode == "error" and store.has(name):
            raise ValueError(
                f"--output {output}: exists already; choose another name, or say --mode overwrite"
            )
        return
    path = Path(output)
    check_new_file(path, "scores.parquet", mode == "overwrite")
    check_not_of_run(path, run)
    check_not_read(path, resolve_files(source), source, folder=False)
    remove_dead(path.parent, path.name)
