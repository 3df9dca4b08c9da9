"""Where scores go: one file for all rows, or a folder with files for each file that was read."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mmoe.datasets.files.data_file import DataFile, is_partition
from mmoe.datasets.files.parquet_files import parquet_layout
from mmoe.datasets.files.resolve import kind_of, resolve_files
from mmoe.errors import RanksDiffer
from mmoe.parallel import first_other, from_first, join_ranks, rank, world_size
from mmoe.run.atomic_files import check_parents
from mmoe.run.directory import RunDirectory
from mmoe.run.protected_paths import check_not_of_run, check_not_read, identities, identity
from mmoe.run.temporaries import is_temporary, remove_dead
from mmoe.score.provenance import Provenance, check_provenance, is_scored, with_input, with_rows

_PARQUET = (".parquet", ".pq")
# Files that are asked how many rows they have; each answer of a store takes a while
_MOST_COUNTED = 1000
_OURS = re.compile(r"\d{5}-.*\.parquet")
_OTHER_FILES = (".csv", ".gz", ".tsv", ".txt", ".json", ".jsonl", ".arrow", ".feather", ".ipc")


class Part(NamedTuple):
    """What one file of scores holds.

    Attributes:
        file: That is read.
        output: That is written.
        rows: Only rows [first, stop) of the file; None: all.
    """

    file: DataFile
    output: Path
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class FolderJob:
    """What is to be scored into a folder: by this rank, and by all.

    Attributes:
        mine: What this rank scores.
        there: How many files of scores of all ranks need not be written: the folder has them.
        files: How many of them there are.
        folder: That is written into.
        outputs: Where to, of all ranks.
        before: Scores that the folder held at the beginning and is to lose, if none of `outputs`.
    """

    mine: list[Part]
    there: int
    files: int
    folder: Path = Path()
    outputs: list[Path] = field(default_factory=list)
    before: list[Path] = field(default_factory=list)

    def rows(self) -> int | None:
        """Counts the rows of `mine`, where files say how many they have and are not too many."""
        if len(self.mine) > _MOST_COUNTED:
            return None
        counted = 0
        for part in self.mine:
            if part.rows is None and kind_of(part.file) != "parquet":
                return None
            first, stop = part.rows or (0, sum(parquet_layout(part.file)[1]))
            counted += stop - first
        return counted

    def partition_columns(self) -> set[str]:
        """Names the columns whose values are folders of the output."""
        return {
            part.split("=", 1)[0]
            for path in self.outputs
            for part in path.relative_to(self.folder).parts[:-1]
        }

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
    rows_per_file: int | None = None,
) -> FolderJob:
    """Finds what this rank scores, and where to: every W-th file, or piece of one.

    Removes nothing but what a dead process of ours had begun to write, and that only where nothing
    is refused.

    Args:
        run: That scores.
        source: Files to score.
        folder: For the scores.
        by: What scores them, and must have scored what is there.
        overwrite: Replace what is there, when the new files are complete.
        resume: Leave it alone.
        rows_per_file: Cut Parquet files into pieces of so many rows; None: no file is cut.

    Raises:
        ValueError: The folder holds something, and neither `overwrite` nor `resume` is said, or
            something else has scored it, or it is no folder of scores, or one that is read or that
            the run is kept in; or ranks find different files.
    """
    join_ranks()
    files = resolve_files(str(source))
    parts = [
        part
        for number, file in enumerate(files)
        for part in _parts(folder, number, file, rows_per_file)
    ]
    _check_same_files([file.name for file in files], str(source))
    _check_same_model(by)
    found = from_first(lambda: _look(run, source, folder, parts, by, overwrite, resume))
    kept = set() if overwrite else found
    return FolderJob(
        mine=[
            part
            for part in parts[rank() :: world_size()]
            if _name_in(folder, part.output) not in kept
        ],
        there=len(kept),
        files=len(parts),
        folder=folder,
        outputs=[part.output for part in parts],
        before=[folder / name for name in found] if overwrite else [],
    )


def provenance_of_part(by: Provenance, part: Part) -> Provenance:
    """Adds to what scores which rows a file of scores holds."""
    return with_rows(with_input(by, part.file), part.rows)


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


def _parts(folder: Path, number: int, file: DataFile, rows_per_file: int | None) -> list[Part]:
    """In the order that the files are read, in folders `day=2024-01-31` as they are."""
    folder = folder.joinpath(*_partition_folders(folder, file))
    name = f"{number:05d}-{file.name.split('.')[0]}"
    whole = [Part(file, folder / f"{name}.parquet")]
    if rows_per_file is None or kind_of(file) != "parquet":
        return whole  # of other kinds no row is found without reading those before it
    rows = sum(parquet_layout(file)[1])
    starts = range(0, rows, rows_per_file)
    return [
        Part(file, folder / f"{name}-{n:05d}.parquet", (first, min(first + rows_per_file, rows)))
        for n, first in enumerate(starts)
    ] or whole


def _partition_folders(folder: Path, file: DataFile) -> list[str]:
    """Folders that name a column's value, but for those that the output lies in already."""
    there = set(folder.absolute().parts)
    return [
        part
        for part in PurePosixPath(file.absolute).parts[:-1]
        if is_partition(part) and part not in there
    ]


def _name_in(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _look(
    run: RunDirectory,
    source: str | Path,
    folder: Path,
    parts: Sequence[Part],
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
    check_not_read(folder, dict.fromkeys(part.file for part in parts), source, folder=True)
    there = {_name_in(folder, path): path for path in _entries(folder)}
    there = {name for name, path in there.items() if not is_temporary(path.name)}
    _check_scores(folder, there, overwrite, resume)
    if resume and not overwrite:
        _check_resumed(folder, there, parts, by)
    for place in {folder, *(part.output.parent for part in parts)}:
        remove_dead(place)
    return there


def _entries(folder: Path) -> Iterator[Path]:
    """What the folder holds, and in it those that name a column's value."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and is_partition(path.name):
            yield from _entries(path)
        else:
            yield path


def _check_scores(folder: Path, there: set[str], overwrite: bool, resume: bool) -> None:
    """Only what scoring wrote may be there, and only if the user knows."""
    foreign = sorted(name for name in there if not _OURS.fullmatch(name.rpartition("/")[2]))
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


def _check_resumed(folder: Path, there: set[str], parts: Sequence[Part], by: Provenance) -> None:
    """Each of the files must hold the scores that would be written there now."""
    sources = {_name_in(folder, part.output): part for part in parts}
    unknown = sorted(there - sources.keys())
    if unknown:
        raise ValueError(
            f"--output {folder}: holds {unknown[0]}, which belongs to none of the input files; "
            "resume with the same --input and the same --rows-per-file, or choose another folder"
        )
    for name in sorted(there):
        check_provenance(folder / name, provenance_of_part(by, sources[name]))
