"""What a folder of scores holds at the beginning: what is refused, and what is done already."""

import posixpath

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import RowsPrint
from mmoe.score.folder_job import OURS, RECORD, REJECTED, SUMMARY, FolderJob, staged
from mmoe.score.manifest import MANIFEST, SUCCESS, PartRecord, manifest_in
from mmoe.score.provenance import Provenance, difference, is_scored, note_of, print_of
from mmoe.score.store import STAGING, LocalStore, Store


def look(job: FolderJob, resume: bool) -> tuple[dict[str, PartRecord], list[str], bool]:
    """Finds what is done and what is replaced; all that can be refused is, before any goes."""
    store, found = job.store, job.store.names()
    staged = [name for name in found if name.startswith(STAGING + "/")]
    special = (MANIFEST, SUCCESS, SUMMARY)
    there = [name for name in found if name not in special and name.split("/")[0] != REJECTED]
    there = [name for name in there if name not in staged]
    _check_scores(job, there, bool(staged) or MANIFEST in found, resume)
    done, is_complete = _done(job, set(found)) if resume else ({}, False)
    if isinstance(store, LocalStore):
        store.remove_dead()
    if not resume:
        store.remove(STAGING)
    return done, there, is_complete


def _check_scores(job: FolderJob, there: list[str], begun: bool, resume: bool) -> None:
    """Only what scoring wrote may be there, and only if the user knows."""
    address = job.store.address
    foreign = [name for name in there if not OURS.fullmatch(posixpath.basename(name))]
    if not foreign and job.mode != "error":  # a name alone makes nothing ours
        foreign = [name for name in there if not is_scored(job.store, name)]
    if foreign:
        raise ValueError(
            f"--output {address}: holds {foreign[0]}, which no scoring wrote; name a new folder, "
            "or a file that ends in .parquet"
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
            "resume with the same --input and the same --rows-per-file, or choose another folder"
        )


def _done(job: FolderJob, found: set[str]) -> tuple[dict[str, PartRecord], bool]:
    """Finds parts that are there, were scored as they would be now, and hold what they held then.

    A part without a record, or whose bytes are others, is scored again.
    """
    manifest = manifest_in(job.store) if SUCCESS in found or job.mode == "error" else None
    written = {} if manifest is None else {part.name: part for part in manifest.parts}
    known = {part.name for part in job.parts}
    begun = [n for n in found if n.startswith(STAGING + "/") and n.endswith(".parquet" + RECORD)]
    for name in begun:
        name = name.removeprefix(STAGING + "/").removesuffix(RECORD)
        if name not in known:
            raise ValueError(
                f"--resume: {job.store.address} was begun with {name}, which belongs to none of "
                "the input files; resume with the same --input and the same --rows-per-file"
            )
        written[name] = job.record(name)
    done, prints = {}, dict[DataFile, RowsPrint]()
    for part in job.parts:
        record = written.get(part.name)
        if record is not None:
            by = record.scored_by
        elif part.name in found and job.mode == "error":
            by = _note_of(job.store, part.name)  # of a version that wrote no records
        else:
            continue
        if part.file not in prints:
            prints[part.file] = print_of(part.file)
        differs = difference(by, job.provenance(part, prints[part.file]))
        if differs is not None and (job.mode == "error" or staged(part.name) in found):
            raise ValueError(
                f"--resume: {part.name} in {job.store.address} was scored with {differs}; resume "
                "as it was begun, say --mode overwrite to score all files anew, or name "
                "another folder"
            )
        if differs is None and record is not None and _is_whole(job.store, record, found):
            done[part.name] = record
    is_complete = SUCCESS in found and not begun and len(done) == len(job.parts) == len(written)
    return done, is_complete


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
