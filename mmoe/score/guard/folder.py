"""A folder of scores, all of whose parts are there: judged, then published or put aside."""

import posixpath
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from mmoe.datasets.files.data_file import is_partition
from mmoe.errors import Damaged
from mmoe.score.folder_job import FolderJob
from mmoe.score.guard.counts import added
from mmoe.score.guard.guard import Guard
from mmoe.score.guard.summary import Summary
from mmoe.score.manifest import MANIFEST, SUCCESS, Manifest, PartRecord, manifest_in, read_manifest
from mmoe.score.store import store_at

_READERS = 8
# Of folders such as day=2024-01-31 beside this one, the last ones are looked at
_NEIGHBOURS = 31


def end_folder(job: FolderJob, guard: Guard) -> tuple[Summary, bool]:
    """Publishes a folder's parts if they are as expected; else puts them aside.

    Of a folder that is complete nothing is moved.

    What was counted of a part is in its file, whoever scored it and when: so the figures are the
    same bits after any number of interruptions.

    Args:
        job: Whose parts are all there.
        guard: Judges them.

    Returns:
        The figures, and whether no earlier call had died while it replaced what was there.

    Raises:
        ValueError: There are expectations, and parts of which nothing was counted.
    """
    names = [part.name for part in job.parts]
    with ThreadPoolExecutor(_READERS) as pool:  # each answer of an object store takes a while
        counted = dict(zip(names, pool.map(job.counts, names), strict=True))
    uncounted = [name for name, found in counted.items() if found is None]
    if uncounted and guard.expectations:
        raise ValueError(
            f"{job.store.address}: an earlier mmoe has scored {uncounted[0]}, and counted nothing "
            "of it to compare with what is expected; say --mode overwrite without --resume, or "
            "leave --expect out"
        )
    counts = added(found for found in counted.values() if found is not None)
    asked = any(expected.measure == "repeated" for expected in guard.expectations)
    summary = guard.judge(counts, _repeated(job) if asked else None)
    was_whole = job.store.has(SUCCESS) or not job.before
    if job.is_complete:
        pass
    elif summary.failed:
        job.reject(summary.as_dict())
    else:
        job.publish(summary.as_dict())
    return summary, was_whole


def _repeated(job: FolderJob) -> float | None:
    """The share of rows from files that earlier scores were made of; None where there are none."""
    earlier = _earlier_inputs(job)
    records = job.records()
    rows = sum(record.rows for record in records)
    if not earlier or not rows:
        return None
    return sum(r.rows for r in records if _content(r) in earlier) / rows


def _content(record: PartRecord) -> tuple[int, str]:
    return record.input.bytes, record.input.digest


def _earlier_inputs(job: FolderJob) -> set[tuple[int, str]]:
    """What other days' folders beside this one were scored of, or else what lies there was.

    The folder of a day itself may be scored again.
    """
    address = job.store.address.rstrip("/")
    if is_partition(posixpath.basename(address)):
        manifests = _of_neighbours(address)
    else:
        manifests = [_of_others(job)]
    return {_content(part) for found in manifests if found is not None for part in found.parts}


def _of_others(job: FolderJob) -> Manifest | None:
    """The manifest that lies there, if it is not that of a call which died while it published."""
    found = manifest_in(job.store)
    if found is None or job.store.has(SUCCESS):
        return found
    own = {record.sha256 for record in job.records()}
    return None if {part.sha256 for part in found.parts} == own else found


def _of_neighbours(address: str) -> list[Manifest]:
    """Those of the last days: of what holds no scores, or none of ours, there is none."""
    above, own = store_at(posixpath.dirname(address)), posixpath.basename(address)
    key = own.partition("=")[0]
    others = sorted(n for n in above.folders() if n.startswith(f"{key}=") and n != own)
    found = []
    for name in others[-_NEIGHBOURS:]:
        place = f"{name}/{MANIFEST}"
        with suppress(FileNotFoundError, Damaged):
            found.append(read_manifest(above.read(place), place))
    return found
