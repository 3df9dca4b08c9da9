"""Where scores go: one file for all rows, or a folder with files for each file that was read."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mmoe.datasets.files.data_file import DataFile, is_address, is_partition
from mmoe.datasets.files.formats import cut_file
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.files.row_span import Cut
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import RanksDiffer
from mmoe.parallel import first_other, from_first, join_ranks, rank, world_size
from mmoe.run.atomic_files import check_parents
from mmoe.run.directory import RunDirectory
from mmoe.run.protected_paths import check_not_of_run, check_not_read, check_not_read_at
from mmoe.score.folder_checks import look
from mmoe.score.folder_job import FolderJob, OutputMode, Part
from mmoe.score.provenance import Provenance, print_of
from mmoe.score.store import LocalStore, store_at

_PARQUET = (".parquet", ".pq")
_AT_ONCE = 4  # files that are looked through
_OTHER_FILES = (
    ".csv", ".tsv", ".txt", ".json", ".jsonl", ".arrow", ".feather", ".ipc",
    ".gz", ".bz2", ".zst", ".zip",
)  # fmt: skip


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
        rows_per_file: Cut files into pieces of so many rows (of requests, where they have their
            candidates in a list); None: no file is cut.

    Raises:
        ValueError: The folder holds something that `mode` and `resume` say nothing about, or
            something else has scored it, or it is no folder of scores, or one that is read or that
            the run is kept in; or ranks find different files.
    """
    join_ranks()
    files = resolve_files(with_names(run.config(), str(source)))
    folders = set(Path(folder).absolute().parts) if not is_address(str(folder)) else set()
    _check_same_files([file.name for file in files], str(source))
    _check_same_model(by)
    store = store_at(folder)
    if isinstance(store, LocalStore):
        from_first(lambda: _check_place(run, source, store.folder, files))
    else:
        check_not_read_at(str(folder), files, str(source), folder=True)
    if mode == "error" and not resume:  # before large files are looked through
        from_first(lambda: look(FolderJob(store, by, mode, [], []), resume))
    cuts = _cuts(files, rows_per_file)
    parts = [part for number, cut in enumerate(cuts) for part in _parts(folders, number, cut)]
    job = FolderJob(store, by, mode, parts, [])
    found = from_first(lambda: look(job, resume), takes_long=True)
    left = [part for part in parts if part.name not in found.done]
    mine = left[rank() :: world_size()]
    notes = _of_whole(cut for cut, _ in cuts)
    return replace(job, mine=mine, resume=resume, notes=notes, **found._asdict())


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


def _cuts(
    files: Sequence[DataFile], rows_per_file: int | None
) -> list[tuple[Cut, tuple[int, str] | None]]:
    """How each file is cut, and what it was before that; rank 0 looks for all."""
    if rows_per_file is None:
        return [(Cut(file), None) for file in files]

    def cut(file: DataFile) -> tuple[Cut, tuple[int, str]]:
        found = print_of(file)
        return cut_file(file, rows_per_file), (found.size, found.digest)

    def cut_all() -> list[tuple[Cut, tuple[int, str] | None]]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(cut, files))

    return from_first(cut_all, takes_long=True)


def _of_whole(cuts: Iterable[Cut]) -> list[str]:
    """A line for each reason why files are not cut."""
    found: dict[str, list[str]] = {}
    for cut in cuts:
        if cut.why_whole:
            found.setdefault(cut.why_whole, []).append(str(cut.file))
    return [
        f"--rows-per-file: {names[0]}{f' and {len(names) - 1:,} more' if names[1:] else ''}, which "
        f"{why}, is one piece"
        for why, names in found.items()
    ]


def _parts(folders: set[str], number: int, found: tuple[Cut, tuple[int, str] | None]) -> list[Part]:
    """In the order that the files are read, in folders `day=2024-01-31` as they are.

    Those that the output lies in already are not repeated.
    """
    cut, cut_of = found
    partitions = [
        part
        for part in PurePosixPath(cut.file.absolute).parts[:-1]
        if is_partition(part) and part not in folders
    ]
    name = "/".join([*partitions, f"{number:05d}-{cut.file.name.split('.')[0]}"])
    return [
        Part(cut.file, f"{name}-{n:05d}.parquet", span, cut_of) for n, span in enumerate(cut.spans)
    ] or [Part(cut.file, f"{name}.parquet")]


def _check_place(
    run: RunDirectory, source: str | Path, folder: Path, files: Sequence[DataFile]
) -> None:
    """Refuses a place on this machine where no scores may be written."""
    check_parents(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"--output {folder}: is a file; name a folder, or a file that ends in .parquet"
        )
    check_not_of_run(folder, run)
    check_not_read(folder, dict.fromkeys(files), source, folder=True)
