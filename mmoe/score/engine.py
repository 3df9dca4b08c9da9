"""`Engine`: scores the parts of a folder in processes of its own; `mmoe.integrations` has them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from mmoe.run.console import Tracker
from mmoe.run.directory import RunDirectory
from mmoe.score.asked import Asked, InputColumns
from mmoe.score.folder_job import FolderJob
from mmoe.score.guard.counts import ScoreCounts

# Scores `mine` of a job: tells of each row that is done, and counts them
ScoreParts = Callable[[Tracker], ScoreCounts]


class Engine(Protocol):
    """Where a folder is scored, if not in this process.

    It writes parts into their places of the job, each with its record, as this process would. The
    job itself is begun, and published, by who asks.
    """

    name: str

    def workers(
        self, run: RunDirectory, asked: Asked, found: InputColumns, job: FolderJob
    ) -> AbstractContextManager[ScoreParts]:
        """Starts its processes, and ends them; nothing is written before `ScoreParts` is called.

        Args:
            run: That scores.
            asked: What is asked for.
            found: Of the input.
            job: Of the folder.

        Raises:
            ValueError: They cannot be started, or cannot load the model.
        """
        ...
