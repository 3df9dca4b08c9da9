"""Where scores go: one file for all rows, or a folder with files for each file that was read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mmoe.datasets.files.data_file import DataFile, is_address, is_partition
from mmoe.datasets.files.parquet_files import parquet_layout
from mmoe.datasets.files.resolve import kind_of, resolve_files
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import RanksDiffer
from mmoe.parallel import first_other, from_first, join_ranks, rank, world_size
from mmoe.run.atomic_files import check_parents
from mmoe.run.directory import RunDirectory
from mmoe.run.protected_paths import check_not_of_run, check_not_read, check_not_read_at
from mmoe.score.folder_checks import look
from mmoe.score.folder_job import FolderJob, OutputMode, Part
from mmoe.score.provenance import Provenance
from mmoe.score.store import LocalStore, store_at

_PARQUET = (".parquet", ".pq")
_OTHER_FILES = (".csv", ".gz", ".tsv", ".txt", ".json", ".jsonl", ".arrow", ".feather", ".ipc")


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


def folder_job(
    run: RunDirectory,
    source: str | Path,
    folder: str | Path,
    by: Provenance,
    *,
    mode: OutputMode = "error",
    resume: bool = False,
    rows_per_file: int | None = None,
) -> FolderJob:
    """Finds what this rank scores, and where to: every W-th file, or piece of one.

    Changes nothing; `FolderJob.start` does.

    Args:
        run: That scores.
        source: Files to score.
        folder: For the scores; may be an address.
        by: What scores them, and must have scored what is resumed.
        mode: Of what is there: refused, replaced, or replaced in the folders that get new scores.
        resume: Go on with what an interrupted call has done.
        rows_per_file: Cut Parquet files into pieces of so many rows (of requests, where they have
            their candidates in a list); None: no file is cut.

    Raises:
        ValueError: The folder holds something that `mode` and `resume` say nothing about, or
            something else has scored it, or it is no folder of scores, or one that is read or that
            the run is kept in; or ranks find different files.
    """
    join_ranks()
    files = resolve_files(with_names(run.config(), str(source)))
    folders = set(Path(folder).absolute().parts) if not is_address(str(folder)) else set()
    parts = [
        part
        for number, file in enumerate(files)
        for part in _parts(folders, number, file, rows_per_file)
    ]
    _check_same_files([file.name for file in files], str(source))
    _check_same_model(by)
    store = store_at(folder)
    if isinstance(store, LocalStore):
        from_first(lambda: _check_place(run, source, store.folder, parts))
    else:
        check_not_read_at(str(folder), files, str(source), folder=True)
    job = FolderJob(store, by, mode, parts, [])
    found = from_first(lambda: look(job, resume), takes_long=True)
    left = [part for part in parts if part.name not in found.done]
    return replace(job, mine=left[rank() :: world_size()], resume=resume, **found._asdict())


def _check_same_files(names: list[str], source: str) -> None:
    """They are dealt out by their numbers."""
    found = first_other(names)
    if found is not None:
        r, other, first = found
        raise ValueError(
            f"--input {source}: rank {r} finds other files there than rank 0 ({len(other)} "
            f"and {len(first)}); name a folder on a file system that all ranks share"
        )


def _check_same_model(by: Provenance) -> None:
    """Each rank reads the run itself."""
    if differs := first_other(dict(by)):
        other, theirs, ours = differs
        name = next(name for name in ours if theirs.get(name) != ours[name])
        raise RanksDiffer(
            f"rank {other} would score with {name} {theirs.get(name)}, rank 0 with {ours[name]}; "
            "name a run on a file system that all ranks share, and train no more into it"
        )


def _parts(folders: set[str], number: int, file: DataFile, rows_per_file: int | None) -> list[Part]:
    """In the order that the files are read, in folders `day=2024-01-31` as they are.

    Those that the output lies in already are not repeated.
    """
    partitions = [
        part
        for part in PurePosixPath(file.absolute).parts[:-1]
        if is_partition(part) and part not in folders
    ]
    name = "/".join([*partitions, f"{number:05d}-{file.name.split('.')[0]}"])
    whole = [Part(file, f"{name}.parquet")]
    if rows_per_file is None or kind_of(file) != "parquet":
        return whole  # of other kinds no row is found without reading those before it
    rows = sum(parquet_layout(file)[1])
    starts = range(0, rows, rows_per_file)
    return [
        Part(file, f"{name}-{n:05d}.parquet", (first, min(first + rows_per_file, rows)))
        for n, first in enumerate(starts)
    ] or whole


def _check_place(
    run: RunDirectory, source: str | Path, folder: Path, parts: Sequence[Part]
) -> None:
    """Refuses a place on this machine where no scores may be written."""
    check_parents(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"--output {folder}: is a file; name a folder, or a file that ends in .parquet"
        )
    check_not_of_run(folder, run)
    check_not_read(folder, dict.fromkeys(part.file for part in parts), source, folder=True)
