"""Where one file of scores goes: to its name, or to a folder that is published when it is whole."""

from dataclasses import dataclass
from pathlib import Path

from mmoe.datasets.rows.unseen_ids import UnseenIds
from mmoe.score.folder_job import FolderJob, Part, record_of
from mmoe.score.provenance import Provenance, print_of
from mmoe.score.store import Store, digest_of


@dataclass(frozen=True)
class OneFile:
    """A file by itself, which gets its name when it is complete.

    Attributes:
        store: The folder that it lies in.
        name: Its name there.
        by: What scores it.
    """

    store: Store
    name: str
    by: Provenance

    def __str__(self) -> str:
        """What the user calls it."""
        return f"{self.store.address.rstrip('/')}/{self.name}"

    def look(self) -> Provenance:
        """Returns what scores it."""
        return self.by

    def begin(self) -> Path:
        """Returns a place for it on this machine."""
        return self.store.begin(self.name)

    def finish(self, written: Path, by: Provenance, unseen: UnseenIds) -> None:
        """Gives it its name."""
        self.store.put(written, self.name)


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

    def finish(self, written: Path, by: Provenance, unseen: UnseenIds) -> None:
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
        record = record_of(self.part, found, by, unseen.rows, size_and_sum, unseen.summary())
        self.job.put(self.part, written, record)
