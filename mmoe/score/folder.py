"""`FolderJob`: a folder of scores in the making, judged and published when it is whole."""

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from mmoe.datasets.files.data_file import DataFile, is_partition
from mmoe.datasets.files.fingerprint import RowsPrint
from mmoe.datasets.files.readers import Paths
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import Damaged
from mmoe.parallel import from_all, from_first, rank
from mmoe.run import Reporter
from mmoe.run.store import REJECTED, STAGING, Store, digest_of, store_at
from mmoe.score.file_scorer import FileScorer, OutputMode, ScoreParts, count_rows
from mmoe.score.guard import Guard, ScoreCounts, Summary, added
from mmoe.score.provenance import (
    MANIFEST,
    SUCCESS,
    InputRecord,
    Manifest,
    PartRecord,
    Provenance,
    as_bytes,
    as_unseen_ids,
    difference,
    of_rows,
    print_of,
    read_manifest,
    read_record,
)

SUMMARY = "_summary.json"
OURS = re.compile(r"\d{5}-.*\.parquet", re.S)
RECORD = ".json"
_READERS = 8
# Of folders such as day=2024-01-31 beside this one, the last ones are looked at
_NEIGHBOURS = 31


class Part(NamedTuple):
    """Part of the scores, one file.

    Attributes:
        file: That is read.
        name: Of the file that is written, in its folder.
        span: Only rows of these numbers; None: all.
        cut_of: What the file was when it was cut: its bytes and their digest.
    """

    file: DataFile
    name: str
    span: range | None = None
    cut_of: tuple[int, str] | None = None

    @property
    def rows(self) -> tuple[int, int] | None:
        """Numbers of the first row and of the one behind the last; None: all."""
        return None if self.span is None else (self.span.start, self.span.stop)


@dataclass(frozen=True)
class FolderJob:
    """Job of scoring into a folder: this rank's part, and all.

    Files of scores lie in `_staging`, each with a record beside it, until all of them are there.
    Then `publish` gives them their names: whoever reads the folder finds the scores of before, or
    the new ones.

    Attributes:
        store: The folder.
        by: What scores.
        mode: What becomes of scores that are there.
        parts: Of all ranks, in the order of the rows.
        mine: What this rank scores.
        done: Records of parts that need not be scored, as an interrupted call has done it.
        before: Names of scores that the folder held at the beginning, and is to lose.
        kept: Records of those that stay, in partitions that get no new ones.
        is_complete: Whether nothing is left to do, not even to publish.
        resume: Whether parts that wait in `_staging` stay there.
        notes: What people are told of how files were cut, a line each.
    """

    store: Store
    by: Provenance
    mode: OutputMode = "error"
    parts: list[Part] = field(default_factory=list)
    mine: list[Part] = field(default_factory=list)
    done: dict[str, PartRecord] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    kept: list[PartRecord] = field(default_factory=list)
    is_complete: bool = False
    resume: bool = False
    notes: Sequence[str] = ()

    def start(self) -> None:
        """Keeps others out of the folder, and removes what calls that died had begun.

        Raises:
            ValueError: Another call is writing into it.
        """
        self.store.lock()
        names = self.store.names()
        if not self.resume:
            for name in filter(is_staged, names):
                self.store.remove(name)
            return
        for part in self.done:  # of what was rejected: it is judged anew
            for name in (part + RECORD, part):
                if staged(name) not in names and rejected(name) in names:
                    self.store.move(rejected(name), staged(name))

    def here(self, files: FileScorer) -> ScoreParts:
        """Returns what scores `mine` in this process."""
        named = partial(with_names, files.scorer.config)
        mine = [OfFolder(self, part, named(part.file)) for part in self.mine]
        return partial(files.score, mine, helping=named(self.parts[0].file))

    def take(self, score: ScoreParts, guard: Guard, reporter: Reporter) -> ScoreCounts:
        """Has `score` write what is `mine`, and publishes the folder when all of it is there."""
        for note in self.notes:
            reporter.say(note)
        if not self.is_complete:
            from_first(self.start)
        try:
            rows = count_rows([(part.file, part.span) for part in self.mine])
            with reporter.track("scoring", rows, "rows") as tracker:
                counts = added(from_all(score(tracker)))
            rejected = None if self.is_complete else f"{self.store.address}/{REJECTED}"
            if not self.is_complete or guard.expectations:
                summary, was_whole = from_first(lambda: end_folder(self, guard), takes_long=True)
                guard.conclude(summary, self.store.address, rejected, was_whole=was_whole)
        except ValueError:
            if rank() == 0 and not any(map(is_staged, self.store.names())):
                self.store.remove(STAGING)  # no part is there to go on with
            raise
        finally:
            self.store.unlock()
        reporter.say(_outcome(counts.rows, self))
        return counts

    def partition_columns(self) -> set[str]:
        """Names the columns whose values are folders of the output."""
        folders = {part for p in self.parts for part in PurePosixPath(p.name).parts[:-1]}
        return {folder.split("=", 1)[0] for folder in folders}

    def provenance(self, part: Part, found: RowsPrint | None = None) -> Provenance:
        """Returns what the scores of a part depend on.

        Args:
            part: Which.
            found: Of the file that is read; None: it is looked at, as it is now.

        Raises:
            ValueError: It is another file than the one that was cut.
        """
        found = found or print_of(part.file)
        if part.cut_of not in (None, (found.size, found.digest)):
            raise ValueError(
                f"{part.file}: was written to after it was cut into parts; their scores are of no "
                "use. Score again when it is complete, with --mode overwrite"
            )
        return of_rows(self.by, found, part.rows)

    def records(self) -> list[PartRecord]:
        """Reads the records of all parts, when all are done."""
        return [self.done.get(part.name) or self.record(part.name) for part in self.parts]

    def publish(self, summary: Mapping[str, Any]) -> None:
        """Gives all parts their names, removes what they replace, and says so: `_SUCCESS` last.

        Args:
            summary: Of all rows.

        A call that dies in the middle leaves a folder without `_SUCCESS`, and what a resume needs.
        """
        records, found = self.records(), set(self.store.names())
        self._check(records)
        first = records[0].name
        schema = self.store.schema(staged(first) if staged(first) in found else first)
        columns = {field.name: str(field.type) for field in schema}
        for one in self.kept[:1]:
            stay = {field.name: str(field.type) for field in self.store.schema(one.name)}
            if stay != columns:
                raise ValueError(
                    f"--mode overwrite-partitions: {one.name}, which stays in "
                    f"{self.store.address}, has the columns {', '.join(stay)}, and what is new "
                    f"{', '.join(columns)}; write the same ones, or say --mode overwrite"
                )
        self.store.remove(SUCCESS)
        for part in self.parts:
            if staged(part.name) in found:
                self.store.move(staged(part.name), part.name)
        new = {part.name for part in self.parts}
        for name in self.before:
            if name not in new:
                self.store.remove(name)
        records = [*records, *self.kept]
        inputs = {record.input.name: record.input for record in records}
        manifest = Manifest(
            rows=sum(record.rows for record in records),
            scored_by=dict(self.by),
            columns=columns,
            inputs=list(inputs.values()),
            parts=records,
        )
        self.store.write(MANIFEST, as_bytes(manifest))
        self.store.write(SUMMARY, _as_json(summary))
        for folder in (STAGING, REJECTED):
            with suppress(OSError):  # all parts are in place: what cannot be tidied up may stay
                self.store.remove(folder)
        self.store.write(SUCCESS, b"")

    def reject(self, summary: Mapping[str, Any]) -> None:
        """Puts all parts aside, with their records: what was published stays as it was.

        Of a call that died while it published, parts that have their names already are put aside
        too.

        Args:
            summary: Says why.
        """
        names = self.store.names()
        self.store.remove(REJECTED)
        for part in () if SUCCESS in names else self.parts:
            if staged(part.name) not in names and staged(part.name) + RECORD in names:
                self.store.move(part.name, rejected(part.name))
        for name in filter(is_staged, names):
            self.store.move(name, rejected(name.removeprefix(f"{STAGING}/")))
        self.store.write(rejected(SUMMARY), _as_json(summary))
        self.store.remove(STAGING)

    def counts(self, name: str) -> ScoreCounts | None:
        """Reads what was counted of a part that is done; None: it does not say."""
        place = staged(name) if self.store.has(staged(name)) else name
        return ScoreCounts.in_metadata(self.store.notes(place))

    def record(self, name: str) -> PartRecord:
        """Reads the record of a part that waits to be published."""
        return read_record(self.store, staged(name) + RECORD)

    def check_shared(self) -> None:
        """Refuses a folder that other processes cannot write."""
        if self.store.address.startswith("memory://"):
            raise ValueError(
                f"--output {self.store.address}: is the memory of one process, and workers are "
                "others; name a folder, or an object store"
            )

    def check_written(self, part: Part) -> None:
        """Refuses a folder where another process wrote a part, and that is another one here."""
        try:
            self.record(part.name)
        except FileNotFoundError:
            raise ValueError(
                f"--output {self.store.address}: a worker wrote {part.name} there, and it is "
                "not here; name a folder on a file system that all nodes of the cluster share, "
                "or an object store"
            ) from None

    def _check(self, records: Sequence[PartRecord]) -> None:
        """Another call that wrote into the same folder would be published with this one."""
        for record in records:
            differs = difference(record.scored_by, self.by)
            if differs is not None:
                raise ValueError(
                    f"{self.store.address}: {record.name} was scored by another call meanwhile "
                    f"({differs}); let one end before the other, and say --mode overwrite"
                )


@dataclass(frozen=True)
class OfFolder:
    """A part of a folder of scores.

    Attributes:
        job: Of the folder.
        part: Which.
        source: Its file, with names of columns where the config says them.
    """

    job: FolderJob
    part: Part
    source: Paths

    def __str__(self) -> str:
        return f"{self.job.store.address}/{self.part.name}"

    @property
    def span(self) -> range | None:
        """Rows of the part."""
        return self.part.span

    def look(self) -> Provenance:
        """Looks at the file that is read, as it is now."""
        return self.job.provenance(self.part)

    def begin(self) -> Path:
        """Returns where on this machine it is written."""
        return self.job.store.begin(staged(self.part.name))

    def notes(self, counts: ScoreCounts) -> Mapping[bytes, bytes]:
        """Returns unseen ids, and what all parts are judged by."""
        return as_unseen_ids(counts.unseen_ids()) | counts.as_metadata()

    def finish(self, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        """Hands it over with its record, to stay where nobody finds it until all parts are there.

        Raises:
            ValueError: What was read is another file now.
        """
        found = print_of(self.part.file)
        if self.job.provenance(self.part, found) != by:
            raise ValueError(
                f"{self.part.file}: was written to while it was read; its scores are of no use. "
                "Score again when it is complete, with --resume"
            )
        size, digest = digest_of(written)
        record = PartRecord(
            name=self.part.name,
            rows=counts.rows,
            bytes=size,
            sha256=digest,
            input=InputRecord(name=self.part.file.address, bytes=found.size, digest=found.digest),
            span=self.part.rows,
            scored_by=dict(by),
            unseen_ids=dict(counts.unseen_ids()),
        )
        self.job.store.put(written, staged(self.part.name))
        self.job.store.write(staged(self.part.name) + RECORD, as_bytes(record))


def is_staged(name: str) -> bool:
    """Returns whether a name in a folder is of what waits there."""
    return name.startswith(f"{STAGING}/")


def staged(name: str) -> str:
    """Returns where a part lies until all are there."""
    return f"{STAGING}/{name}"


def rejected(name: str) -> str:
    """Returns where a part lies that is not published."""
    return f"{REJECTED}/{name}"


def _as_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"


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
    if not job.is_complete:
        (job.reject if summary.failed else job.publish)(summary.as_dict())
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
    """Finds the inputs of other days' folders beside this one, or of what lies there.

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
    found = read_manifest(job.store)
    if found is None or job.store.has(SUCCESS):
        return found
    own = {record.sha256 for record in job.records()}
    return None if {part.sha256 for part in found.parts} == own else found


def _of_neighbours(address: str) -> list[Manifest | None]:
    """Manifests of the last days; None of a folder that holds no readable one."""
    above, own = store_at(posixpath.dirname(address)), posixpath.basename(address)
    key = own.partition("=")[0]
    others = sorted(n for n in above.folders() if n.startswith(f"{key}=") and n != own)
    found = []
    for name in others[-_NEIGHBOURS:]:
        with suppress(Damaged):
            found.append(read_manifest(above, f"{name}/"))
    return found


def _outcome(rows: int, job: FolderJob) -> str:
    scored = f"{rows:,} rows scored into {job.store.address}"
    if not job.done:
        return scored
    files = f"{len(job.done):,} of {len(job.parts):,} files"
    if len(job.done) == len(job.parts):
        return f"nothing left to score: {files} were in {job.store.address} already"
    return f"{scored}; {files} were there already"
