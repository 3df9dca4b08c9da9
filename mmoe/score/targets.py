"""Where one file of scores goes: to its name, or to a folder that is published when it is whole."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmoe.score.folder_job import FolderJob, Part, record_of
from mmoe.score.guard.counts import ScoreCounts
from mmoe.score.guard.guard import Guard
from mmoe.score.provenance import SUMMARY_KEY, Provenance, as_unseen_ids, print_of
from mmoe.score.store import REJECTED, Store, digest_of


@dataclass(frozen=True)
class OneFile:
    """A file by itself, which gets its name when it is complete.

    Attributes:
        store: The folder that it lies in.
        name: Its name there.
        by: What scores it.
        guard: Judges it.
    """

    store: Store
    name: str
    by: Provenance
    guard: Guard

    def __str__(self) -> str:
        """What the user calls it."""
        return f"{self.store.address.rstrip('/')}/{self.name}"

    def look(self) -> Provenance:
        """Returns what scores it."""
        return self.by

    def begin(self) -> Path:
        """Returns a place for it on this machine."""
        return self.store.begin(self.name)

    def notes(self, counts: ScoreCounts) -> Mapping[bytes, bytes]:
        """Returns unseen ids, and the summary."""
        summary = json.dumps(self.guard.judge(counts).as_dict())
        return as_unseen_ids(counts.unseen_ids()) | {SUMMARY_KEY: summary.encode()}

    def finish(self, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        """Gives it its name, if it is as expected; else it goes into `_rejected` beside it."""
        summary, rejected = self.guard.judge(counts), f"{REJECTED}/{self.name}"
        if summary.failed:
            place = self.store.begin(rejected)
            written.replace(place)
            self.store.put(place, rejected)
        else:
            self.store.put(written, self.name)
            self.store.remove(rejected)

    def conclude(self, counts: ScoreCounts) -> None:
        """Shows the summary.

        Raises:
            Rejected: The scores are not as expected.
        """
        rejected = f"{self.store.address.rstrip('/')}/{REJECTED}/{self.name}"
        self.guard.conclude(self.guard.judge(counts), str(self), rejected)


@dataclass(frozen=True)
class OfFolder:
    """A part of a folder of scores.

    Attributes:
        job: Of the folder.
        part: Which.
    """

    job: FolderJob
    part: Part

    def __str__(self) -> str:
        """Its name, in the folder."""
        return f"{self.job.store.address}/{self.part.name}"

    def look(self) -> Provenance:
        """Looks at the file that is read, as it is now."""
        return self.job.provenance(self.part)

    def begin(self) -> Path:
        """Returns where it is written."""
        return self.job.begin(self.part)

    def notes(self, counts: ScoreCounts) -> Mapping[bytes, bytes]:
        """Returns unseen ids, and what all parts are judged by."""
        return as_unseen_ids(counts.unseen_ids()) | counts.as_metadata()

    def finish(self, written: Path, by: Provenance, counts: ScoreCounts) -> None:
        """Hands it over with its record.

        Raises:
            ValueError: What was read is another file now.
        """
        found = print_of(self.part.file)
        if self.job.provenance(self.part, found) != by:
            raise ValueError(
                f"{self.part.file}: was written to while it was read; its scores are of no use. "
                "Score again when it is complete, with --resume"
            )
        size_and_sum = digest_of(written)
        record = record_of(self.part, found, by, counts.rows, size_and_sum, counts.unseen_ids())
        self.job.put(self.part, written, record)
