"""Where scores go: one file for all rows, or a folder with a file for each file that was read."""

import re
from dataclasses import dataclass
from pathlib import Path

from mmoe.datasets.data_file import DataFile
from mmoe.datasets.files import resolve_files
from mmoe.parallel import first_other, from_first, join_ranks, rank, world_size
from mmoe.score.scored_by import ScoredBy, check_scored_by
from mmoe.score.text_files import check_parents

_PARQUET = (".parquet", ".pq")
_OURS = re.compile(r"\d{5}-.*\.parquet")
_OTHER_FILES = (".csv", ".gz", ".tsv", ".txt", ".json", ".arrow", ".feather", ".ipc")


@dataclass(frozen=True)
class FolderPlan:
    """What is to be done for a folder.

    Attributes:
        mine: The files that this rank scores, and where to.
        there: How many files of all ranks need not be scored: the folder has their scores.
        files: How many there are.
    """

    mine: list[tuple[DataFile, Path]]
    there: int
    files: int


def is_one_file(output: Path) -> bool:
    """Whether a name means one file; if not, a folder.

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


def plan_folder(
    source: str | Path, folder: Path, by: ScoredBy, *, overwrite: bool, resume: bool
) -> FolderPlan:
    """Which files this rank scores, and where to: every W-th of them.

    Args:
        source: Files to score.
        folder: For the scores.
        by: What scores them, and must have scored what is there.
        overwrite: Remove what is there.
        resume: Leave it alone.

    Raises:
        ValueError: The folder holds something, and neither `overwrite` nor `resume` is said, or
            something else has scored it; or ranks find different files.
    """
    join_ranks()
    files = resolve_files(str(source))
    outputs = [folder / _output_name(number, file) for number, file in enumerate(files)]
    _check_same_files([file.name for file in files], str(source))
    _check_same_model(by)
    found = from_first(lambda: _look(folder, outputs, by, overwrite=overwrite, resume=resume))
    pairs = list(zip(files, outputs, strict=True))[rank() :: world_size()]
    mine = [(file, path) for file, path in pairs if path.name not in found]
    return FolderPlan(mine, there=len(found), files=len(files))


def _check_same_files(names: list[str], source: str) -> None:
    """They are dealt out by their numbers."""
    found = first_other(names)
    if found is not None:
        r, other, first = found
        raise ValueError(
            f"--input {source}: rank {r} finds other files there than rank 0 ({len(other)} "
            f"and {len(first)}); name a folder on a file system that all ranks share"
        )


def _check_same_model(by: ScoredBy) -> None:
    """Each rank reads the run itself."""
    if differs := first_other(dict(by)):
        other, theirs, ours = differs
        name = next(name for name in ours if theirs.get(name) != ours[name])
        raise ValueError(
            f"rank {other} would score with {name} {theirs.get(name)}, rank 0 with {ours[name]}; "
            "name a run on a file system that all ranks share, and train no more into it"
        )


def _output_name(number: int, file: DataFile) -> str:
    """In the order that the files are read, whatever their folders."""
    return f"{number:05d}-{file.name.split('.')[0]}.parquet"


def _look(
    folder: Path, outputs: list[Path], by: ScoredBy, *, overwrite: bool, resume: bool
) -> set[str]:
    """Names that are there already and shall stay."""
    check_parents(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"--output {folder}: is a file; name a folder, or a file that ends in .parquet"
        )
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for stray in [name for name in there if name.startswith(".") and name.endswith(".tmp")]:
        (folder / stray).unlink()  # of a process that was killed
        there.discard(stray)
    foreign = sorted(name for name in there if not _OURS.fullmatch(name))
    if foreign:
        raise ValueError(
            f"--output {folder}: holds {foreign[0]}, which no scoring wrote; name a new folder, or "
            "a file that ends in .parquet"
        )
    if overwrite:
        for name in there:  # scores of files that are no longer read must not stand by the new ones
            (folder / name).unlink()
        return set()
    if there and not resume:
        raise ValueError(
            f"--output {folder}: holds scores already; choose another folder, or say --resume to "
            "score what is missing, or --overwrite"
        )
    unknown = sorted(there - {path.name for path in outputs})
    if unknown:
        raise ValueError(
            f"--output {folder}: holds {unknown[0]}, which belongs to none of the input files; "
            "resume with the same --input, or choose another folder"
        )
    for name in sorted(there):
        check_scored_by(folder / name, by)
    return there
