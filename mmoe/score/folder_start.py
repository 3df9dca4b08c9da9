"""Start of scoring: where scores may go, a folder's parts, and those that are done."""

import posixpath
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from mmoe.datasets.files.data_file import DataFile, is_address, is_partition
from mmoe.datasets.files.fingerprint import RowsPrint
from mmoe.datasets.files.formats import cut_file
from mmoe.datasets.files.readers import column_names
from mmoe.datasets.files.resolve import kind_of, resolve_files
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import Damaged, RanksDiffer
from mmoe.parallel import first_other, from_first, join_ranks, rank, world_size
from mmoe.run import RunDirectory
from mmoe.run.atomic_files import check_parents
from mmoe.run.store import REJECTED, STAGING, LocalStore, Store, check_not_read, store_at
from mmoe.score.file_scorer import Output
from mmoe.score.folder import OURS, RECORD, SUMMARY, FolderJob, Part, is_staged, rejected, staged
from mmoe.score.provenance import (
    MANIFEST,
    SUCCESS,
    InputRecord,
    PartRecord,
    Provenance,
    difference,
    note_of,
    print_of,
    read_manifest,
    read_record,
)
from mmoe.score.scorer import ScoreRequest

_AT_ONCE = 4  # files that are looked through


def folder_job(run: RunDirectory, request: ScoreRequest, to: Output, by: Provenance) -> FolderJob:
    """Finds what this rank scores, and where to: every W-th file, or piece of one.

    Loads no model and changes nothing; `FolderJob.start` does.

    Args:
        run: That scores.
        request: What is asked for.
        to: The folder, and what becomes of scores that are there. Pieces are of whole batches, of
            requests where they have their candidates in a list.
        by: What scores the files, and must have scored what is resumed.

    Raises:
        ValueError: The folder holds something that `mode` and `resume` say nothing about, or
            something else has scored it, or it is no folder of scores, or one that is read or that
            the run is kept in; or ranks find different files.
    """
    config, source, rows_per_file = run.config(), request.source, to.rows_per_file
    if request.top is not None:
        raise ValueError(
            f"--top with --output {to.path}: the best of all rows are one file; name it, such "
            f"as {to.path}/top.parquet"
        )
    if rows_per_file is not None:  # before all of the input is looked through
        there = column_names(with_names(config, source))
        request.columns(config).reads(there, source, "--keep")
        rows_per_file = whole_batches(rows_per_file, config.training.eval_batch_size)
    join_ranks()
    files = resolve_files(with_names(config, source))
    folders = set(Path(to.path).absolute().parts) if not is_address(str(to.path)) else set()
    _check_same_files([file.name for file in files], source)
    _check_same_model(by)
    store = store_at(to.path)
    from_first(lambda: _check_folder(store, run, dict.fromkeys(files), source))
    job = FolderJob(store, by, to.mode, resume=to.resume)
    if to.mode == "error" and not to.resume:  # before large files are looked through
        from_first(lambda: look(job))
    cuts = _cuts(files, rows_per_file)
    parts = [p for n, cut in enumerate(cuts) for p in _parts(folders, n, files[n], *cut)]
    job = replace(job, parts=parts)
    found = from_first(lambda: look(job), takes_long=True)
    left = [part for part in parts if part.name not in found["done"]]
    notes = [] if rows_per_file is None else _of_whole(files)
    return replace(job, mine=left[rank() :: world_size()], notes=notes, **found)


def _check_folder(
    store: Store, run: RunDirectory, files: Collection[DataFile], source: str
) -> None:
    """Refuses a place where no scores may be written."""
    if isinstance(store, LocalStore):
        check_parents(store.folder)
        if store.folder.exists() and not store.folder.is_dir():
            raise ValueError(
                f"--output {store.folder}: is a file; name a folder, or a file that ends in "
                ".parquet"
            )
    check_not_read(store.address, run, files, source, folder=True)


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
    """Checks that all ranks read the same run."""
    if differs := first_other(dict(by)):
        other, theirs, ours = differs
        name = next(name for name in ours if theirs.get(name) != ours[name])
        raise RanksDiffer(
            f"rank {other} would score with {name} {theirs.get(name)}, rank 0 with {ours[name]}; "
            "name a run on a file system that all ranks share, and train no more into it"
        )


# Spans of all rows of a file, in order, none where it is not cut; and what it was before: its bytes
# and their digest
_Cut = tuple[Sequence[range], tuple[int, str] | None]


def _cuts(files: Sequence[DataFile], rows_per_file: int | None) -> list[_Cut]:
    """Returns the cuts of each file; rank 0 looks for all."""
    if rows_per_file is None:
        return [((), None) for _ in files]

    def cut(file: DataFile) -> _Cut:
        if kind_of(file) != "parquet":
            return (), None
        found = print_of(file)
        return cut_file(file, rows_per_file), (found.size, found.digest)

    def cut_all() -> list[_Cut]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(cut, files))

    return from_first(cut_all, takes_long=True)


def _of_whole(files: Sequence[DataFile]) -> list[str]:
    """A line for each reason why files are not cut."""
    found: dict[str, list[str]] = {}
    for file in files:
        if kind_of(file) != "parquet":
            why = "is not Parquet" if file.lake is None else "is part of a lake table"
            found.setdefault(why, []).append(str(file))
    return [
        f"--rows-per-file: {names[0]}{f' and {len(names) - 1:,} more' if names[1:] else ''}, which "
        f"{why}, is one piece"
        for why, names in found.items()
    ]


def _parts(
    folders: set[str],
    number: int,
    file: DataFile,
    spans: Sequence[range],
    cut_of: tuple[int, str] | None,
) -> list[Part]:
    """Returns the parts in the order of the files, in folders `day=2024-01-31` as they are.

    Those that the output lies in already are not repeated.
    """
    partitions = [
        part
        for part in PurePosixPath(file.absolute).parts[:-1]
        if is_partition(part) and part not in folders
    ]
    name = "/".join([*partitions, f"{number:05d}-{file.name.split('.')[0]}"])
    cut = [Part(file, f"{name}-{n:05d}.parquet", span, cut_of) for n, span in enumerate(spans)]
    return cut or [Part(file, f"{name}.parquet")]


def look(job: FolderJob) -> dict[str, Any]:
    """Finds parts that are done, replaced or kept; refuses what it can now. Changes nothing.

    Returns:
        Of the job: `done`, `before`, `kept` and `is_complete`.
    """
    found = job.store.names()
    begun = list(filter(is_staged, found))
    special = {MANIFEST, SUCCESS, SUMMARY, *begun}
    there = [name for name in found if name not in special and not _is_put_aside(name)]
    manifest = read_manifest(job.store)
    written = {} if manifest is None else {part.name: part for part in manifest.parts}
    strange = [name for name in begun if not _is_put_aside(name)]
    _check_scores(job, there + strange, bool(begun) or MANIFEST in found, set(written))
    stay: list[str] = []
    if job.mode == "overwrite-partitions":
        replaced = {posixpath.dirname(part.name) for part in job.parts}
        stay = [name for name in there if posixpath.dirname(name) not in replaced]
    kept = [written.get(name) or _record_of(job.store, name) for name in stay]
    before = [name for name in there if name not in stay]
    put_aside = _put_aside(job, set(found)) if job.resume else {}
    done = put_aside | _done(job, set(found), written, put_aside) if job.resume else {}
    known = {part.name for part in job.parts}
    is_complete = (
        SUCCESS in found
        and not begun
        and not put_aside
        and set(done) == known == set(before)
        and set(written) == {*known, *stay}
    )
    return {"done": done, "before": before, "kept": kept, "is_complete": is_complete}


def _is_put_aside(name: str) -> bool:
    """Whether a file lies where files wait or were put aside, and is called as scoring calls it.

    What else lies there is somebody's, and would go with them.
    """
    folder, slash, rest = name.partition("/")
    if folder not in (STAGING, REJECTED) or not slash:
        return False
    file = posixpath.basename(rest).removesuffix(RECORD)
    return not rest or name == rejected(SUMMARY) or OURS.fullmatch(file) is not None


def _check_scores(job: FolderJob, there: list[str], begun: bool, written: set[str]) -> None:
    """Checks that only what scoring wrote is there, and that the user knows."""
    address = job.store.address
    foreign = [name for name in there if not OURS.fullmatch(posixpath.basename(name))]
    if not foreign and job.mode != "error":  # a name alone makes nothing ours
        unknown = (name for name in there if name not in written)
        foreign = [name for name in unknown if note_of(job.store, name) is None]
    if foreign:
        name = foreign[0] if foreign[0].isprintable() else repr(foreign[0])
        raise ValueError(
            f"--output {address}: holds {name}, which no scoring wrote; name a new folder, or a "
            "file that ends in .parquet"
        )
    if (there or begun) and not job.resume and job.mode == "error":
        what = "scores" if there else "scores that were begun"
        raise ValueError(
            f"--output {address}: holds {what} already; choose another folder, or say --resume to "
            "score what is missing, or --mode overwrite"
        )
    unknown = sorted(set(there) - {part.name for part in job.parts})
    if unknown and job.resume and job.mode == "error":
        raise ValueError(
            f"--output {address}: holds {unknown[0]}, which belongs to none of the input files; "
            "resume with the same --input and the same --rows-per-file, and with --mode overwrite "
            "if it is to be replaced; or choose another folder"
        )


def _put_aside(job: FolderJob, found: set[str]) -> dict[str, PartRecord]:
    """Finds parts that were rejected, and would be scored in the same way now."""
    records = {}
    for part in job.parts:
        place = rejected(part.name)
        if {place, place + RECORD} <= found and staged(part.name) not in found:
            with suppress(Damaged):
                record = read_record(job.store, place + RECORD)
                same = difference(record.scored_by, job.provenance(part)) is None
                if same and job.store.digest(place) == (record.bytes, record.sha256):
                    records[part.name] = record
    return records


def _done(
    job: FolderJob,
    found: set[str],
    published: Mapping[str, PartRecord],
    put_aside: Mapping[str, PartRecord],
) -> dict[str, PartRecord]:
    """Finds parts that are there, were scored as they would be now, and hold what they held then.

    Those that `put_aside` has are not looked for. A part without a record, or whose record or bytes
    are others, is scored again.
    """
    written, known = dict(published), {part.name for part in job.parts}
    waiting: set[str] = set()  # in `_staging`, with their records
    begun = sorted(n for n in filter(is_staged, found) if n.endswith(f".parquet{RECORD}"))
    for name in begun:
        name = name.removeprefix(STAGING + "/").removesuffix(RECORD)
        if name not in known:
            raise ValueError(
                f"--resume: {job.store.address} was begun with {name}, which belongs to none of "
                "the input files; resume with the same --input and the same --rows-per-file"
            )
        with suppress(Damaged):
            written[name] = job.record(name)
            waiting.add(name)
    done, prints = {}, dict[DataFile, RowsPrint]()
    for part in job.parts:
        record = written.get(part.name)
        if part.name in put_aside:
            continue
        if staged(part.name) in found and part.name not in waiting:
            continue  # whoever wrote it died before it had a record
        if record is not None:
            by = record.scored_by
        elif part.name in found and job.mode == "error":
            by = note_of(job.store, part.name)  # whose record is gone
            if by is None:
                raise ValueError(
                    f"--resume: {job.store.address}/{part.name} holds no note of what scored it; "
                    "remove it, so that it is scored again, or name another folder"
                )
        else:
            continue
        if part.file not in prints:
            prints[part.file] = print_of(part.file)
        differs = difference(by, job.provenance(part, prints[part.file]))
        if differs is not None and (job.mode == "error" or part.name in waiting):
            raise ValueError(
                f"--resume: {part.name} in {job.store.address} was scored with {differs}; resume "
                "as it was begun, say --mode overwrite to score all files anew, or name "
                "another folder"
            )
        if differs is None and record is not None and _is_whole(job.store, record, found):
            done[part.name] = record
    return done


def _record_of(store: Store, name: str) -> PartRecord:
    """Returns the record of scores that no manifest names: its writer was cut short."""
    size, digest = store.digest(name) or (0, "")
    by = dict(note_of(store, name) or {})
    unknown = InputRecord(name=by.get("the input", "unknown"), bytes=0, digest="")
    return PartRecord(
        name=name, rows=store.rows(name), bytes=size, sha256=digest, input=unknown, scored_by=by
    )


def _is_whole(store: Store, record: PartRecord, found: set[str]) -> bool:
    place = staged(record.name) if staged(record.name) in found else record.name
    return store.digest(place) == (record.bytes, record.sha256)


def whole_batches(rows: int, height: int) -> int:
    """Returns how many rows of whole scoring batches so many rows hold, one batch at least.

    Example:
        >>> whole_batches(10_000, 4096)
        8192
    """
    if rows < 1:
        raise ValueError(f"--rows-per-file {rows}: expected a number of rows of at least 1")
    return max(1, rows // height) * height
