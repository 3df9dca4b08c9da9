"""What a folder of scores holds at the beginning: what is refused, and what is done already."""

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import RowsPrint
from mmoe.errors import Damaged
from mmoe.score.folder_job import OURS, RECORD, SUMMARY, FolderJob, is_staged, rejected, staged
from mmoe.score.manifest import (
    MANIFEST,
    SUCCESS,
    InputRecord,
    PartRecord,
    manifest_in,
    read_record,
)
from mmoe.score.provenance import Provenance, difference, is_scored, note_of, print_of
from mmoe.score.store import REJECTED, STAGING, Store


class Found(NamedTuple):
    """What a folder holds at the beginning.

    Attributes:
        done: Records of parts that need not be scored.
        before: Scores that are to go when the new ones are there.
        kept: Records of scores that stay.
        is_complete: Whether nothing is left to do.
    """

    done: dict[str, PartRecord]
    before: list[str]
    kept: list[PartRecord]
    is_complete: bool


def look(job: FolderJob, resume: bool) -> Found:
    """Finds what is done, what is replaced and what stays; refuses what can be. Changes nothing."""
    found = job.store.names()
    begun = list(filter(is_staged, found))
    special = {MANIFEST, SUCCESS, SUMMARY, *begun}
    there = [name for name in found if name not in special and not _is_put_aside(name)]
    manifest = manifest_in(job.store)
    written = {} if manifest is None else {part.name: part for part in manifest.parts}
    strange = [name for name in begun if not _is_put_aside(name)]
    _check_scores(job, there + strange, bool(begun) or MANIFEST in found, set(written), resume)
    stay: list[str] = []
    if job.mode == "overwrite-partitions":
        replaced = {posixpath.dirname(part.name) for part in job.parts}
        stay = [name for name in there if posixpath.dirname(name) not in replaced]
    kept = [written.get(name) or _record_of(job.store, name) for name in stay]
    before = [name for name in there if name not in stay]
    put_aside = _put_aside(job, set(found)) if resume else {}
    done = put_aside | _done(job, set(found), written, put_aside) if resume else {}
    known = {part.name for part in job.parts}
    is_complete = (
        SUCCESS in found
        and not begun
        and not put_aside
        and set(done) == known == set(before)
        and set(written) == {*known, *stay}
    )
    return Found(done, before, kept, is_complete)


def _is_put_aside(name: str) -> bool:
    """Whether a file lies where files wait or were put aside, and is called as scoring calls it.

    What else lies there is somebody's, and would go with them.
    """
    folder, slash, rest = name.partition("/")
    if folder not in (STAGING, REJECTED) or not slash:
        return False
    file = posixpath.basename(rest).removesuffix(RECORD)
    return not rest or name == rejected(SUMMARY) or OURS.fullmatch(file) is not None


def _check_scores(
    job: FolderJob, there: list[str], begun: bool, written: set[str], resume: bool
) -> None:
    """Only what scoring wrote may be there, and only if the user knows."""
    address = job.store.address
    foreign = [name for name in there if not OURS.fullmatch(posixpath.basename(name))]
    if not foreign and job.mode != "error":  # a name alone makes nothing ours
        unknown = (name for name in there if name not in written)
        foreign = [name for name in unknown if not is_scored(job.store, name)]
    if foreign:
        name = foreign[0] if foreign[0].isprintable() else repr(foreign[0])
        raise ValueError(
            f"--output {address}: holds {name}, which no scoring wrote; name a new folder, or a "
            "file that ends in .parquet"
        )
    if (there or begun) and not resume and job.mode == "error":
        what = "scores" if there else "scores that were begun"
        raise ValueError(
            f"--output {address}: holds {what} already; choose another folder, or say --resume to "
            "score what is missing, or --mode overwrite"
        )
    unknown = sorted(set(there) - {part.name for part in job.parts})
    if unknown and resume and job.mode == "error":
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
                record = read_record(job.store.read(place + RECORD), f"{job.store.address}/{place}")
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
            by = _note_of(job.store, part.name)  # of a version that wrote no records
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
    """Of scores that no manifest names: by a version that wrote none, or cut short."""
    size, digest = store.digest(name) or (0, "")
    by = dict(note_of(store, name) or {})
    unknown = InputRecord(name=by.get("the input", "unknown"), bytes=0, digest="")
    return PartRecord(
        name=name, rows=store.rows(name), bytes=size, sha256=digest, input=unknown, scored_by=by
    )


def _note_of(store: Store, name: str) -> Provenance:
    found = note_of(store, name)
    if found is None:
        raise ValueError(
            f"--resume: {store.address}/{name} holds no note of what scored it; remove it, so that "
            "it is scored again, or name another folder"
        )
    return found


def _is_whole(store: Store, record: PartRecord, found: set[str]) -> bool:
    place = staged(record.name) if staged(record.name) in found else record.name
    return store.digest(place) == (record.bytes, record.sha256)
