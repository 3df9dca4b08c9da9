"""Where scores go: one file for all rows, or a folder with a file for each file that was read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.resolve import resolve_files
from mmoe.errors import RanksDiffer
from mmoe.parallel import first_other, from_first, join_ranks, rank, world_size
from mmoe.run.atomic_files import check_parents
from mmoe.run.directory import RunDirectory
from mmoe.run.protected_paths import check_not_of_run, check_not_read, identities, identity
from mmoe.run.temporaries import is_temporary, remove_dead
from mmoe.score.provenance import Provenance, check_provenance, is_scored, with_input

_PARQUET = (".parquet", ".pq")
_OURS = re.compile(r"\d{5}-.*\.parquet")
_OTHER_FILES = (".csv", ".gz", ".tsv", ".txt", ".json", ".jsonl", ".arrow", ".feather", ".ipc")


@dataclass(frozen=True)
class FolderJob:
    """What is to be scored into a folder: by this rank, and by all.

    Attributes:
        mine: The files that this rank scores, and where to.
        there: How many files of all ranks need not be scored: the folder has their scores.
        files: How many there are.
        outputs: Where to, of all ranks.
        before: Scores that the folder held at the beginning and is to lose, if none of `outputs`.
    """

    mine: list[tuple[DataFile, Path]]
    there: int
    files: int
    outputs: list[Path] = field(default_factory=list)
    before: list[Path] = field(default_factory=list)

    def remove_stale(self) -> None:
        """Removes scores of files that are no longer read, once all new ones are there."""
        new = identities(self.outputs)
        for path in self.before:
            # A name that differs in case only may be the new file itself
            if identity(path) not in new and is_scored(path):
                path.unlink(missing_ok=True)


def is_one_file(output: Path) -> bool:
    """Returns whether a name means one file; if not, it means a folder.

    Raises:
        ValueError: It means a file that is not Parquet.
    """
    suffix = output.suffix.lower()
    if suffix in _OTHER_FILES:
        raise ValueError(
            f"--output {output}: scores are written as Parquet; end the name in .parquet, or name "
            "a folder"
        )
    return suffix in _PARQUET


def folder_job(
    run: RunDirectory,
    source: str | Path,
    folder: Path,
    by: Provenance,
    *,
    overwrite: bool,
    resume: bool,
) -> FolderJob:
    """Finds which files this rank scores, and where to: every W-th of them.

    Removes nothing but what a dead process of ours had begun to write, and that only where nothing
    is refused.

    Args:
        run: That scores.
        source: Files to score.
        folder: For the scores.
        by: What scores them, and must have scored what is there.
        overwrite: Replace what is there, when the new files are complete.
        resume: Leave it alone.

    Raises:
        ValueError: The folder holds something, and neither `overwrite` nor `resume` is said, or
            something else has scored it, or it is no folder of scores, or one that is read or that
            the run is kept in; or ranks find different files.
    """
    join_ranks()
    files = resolve_files(str(source))
    outputs = [folder / _output_name(number, file) for number, file in enumerate(files)]
    _check_same_files([file.name for file in files], str(source))
    _check_same_model(by)
    found = from_first(
        lambda: _look(
            run, source, folder, dict(zip(outputs, files, strict=True)), by, overwrite, resume
        )
    )
    kept = set() if overwrite else found
    pairs = list(zip(files, outputs, strict=True))[rank() :: world_size()]
    return FolderJob(
        mine=[(file, path) for file, path in pairs if path.name not in kept],
        there=len(kept),
        files=len(files),
        outputs=outputs,
        before=[folder / name for name in found] if overwrite else [],
    )


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


def _output_name(number: int, file: DataFile) -> str:
    """In the order that the files are read, whatever their folders."""
    return f"{number:05d}-{file.name.split('.')[0]}.parquet"


def _look(
    run: RunDirectory,
    source: str | Path,
    folder: Path,
    files: Mapping[Path, DataFile],
    by: Provenance,
    overwrite: bool,
    resume: bool,
) -> set[str]:
    """Names of the scores that are there already; all that can be refused is, before any goes."""
    check_parents(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"--output {folder}: is a file; name a folder, or a file that ends in .parquet"
        )
    check_not_of_run(folder, run)
    check_not_read(folder, files.values(), source, folder=True)
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    there = {name for name in there if not is_temporary(name)}
    _check_scores(folder, there, overwrite, resume)
    if resume and not overwrite:
        _check_resumed(folder, there, files, by)
    remove_dead(folder)
    return there


def _check_scores(folder: Path, there: set[str], overwrite: bool, resume: bool) -> None:
    """Only what scoring wrote may be there, and only if the user knows."""
    foreign = sorted(name for name in there if not _OURS.fullmatch(name))
    if not foreign and overwrite:  # a name alone makes nothing ours
        foreign = sorted(name for name in there if not is_scored(folder / name))
    if foreign:
        raise ValueError(
            f"--output {folder}: holds {foreign[0]}, which no scoring wrote; name a new folder, or "
            "a file that ends in .parquet"
        )
    if there and not resume and not overwrite:
        raise ValueError(
            f"--output {folder}: holds scores already; choose another folder, or say --resume to "
            "score what is missing, or --overwrite"
        )


def _check_resumed(
    folder: Path, there: set[str], files: Mapping[Path, DataFile], by: Provenance
) -> None:
    """Each of the files must hold the scores that would be written there now."""
    sources = {path.name: file for path, file in files.items()}
    unknown = sorted(there - sources.keys())
    if unknown:
        raise ValueError(
            f"--output {folder}: holds {unknown[0]}, which belongs to none of the input files; "
            "resume with the same --input, or choose another folder"
        )
    for name in sorted(there):
        check_provenance(folder / name, with_input(by, sources[name]))
