"""Worker of `mmoe score --engine ray`: the model, and one part at a time."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mmoe.datasets.files.data_file import is_address
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import is_out_of_memory
from mmoe.plugins import import_modules, look_in_current_folder
from mmoe.process_settings import use_cpus_of_ray
from mmoe.run import SilentReporter, open_run
from mmoe.run.store import store_at
from mmoe.score import ScoreRequest
from mmoe.score.file_scorer import FileScorer, InputColumns
from mmoe.score.folder import FolderJob, OfFolder, Part
from mmoe.score.guard import ScoreCounts
from mmoe.score.provenance import Provenance


@dataclass
class PartWorker:
    """An actor, which Ray starts again where it dies: loads the model once, then scores parts.

    Attributes:
        run: That scores.
        request: What is asked for.
        found: Of the input.
        by: What scores, as it was looked at before.
        output: The folder.
        imports: Modules with kinds of the user's own.
        folder: That the command was started in, of which relative paths are meant.
    """

    run: str
    request: ScoreRequest
    found: InputColumns
    by: Provenance
    output: str
    imports: Sequence[str]
    folder: str

    def score(self, part: Part | None) -> ScoreCounts | str:
        """Writes one part into its place in the folder, and its record.

        Args:
            part: Which; None: the model is loaded, and that is all.

        Returns:
            What was counted of its rows. Text: what the user can mend, as not all exceptions come
            whole from another process.
        """
        try:
            files = self.files
            if part is None:
                return ScoreCounts()
            file = OfFolder(self.job, part, with_names(files.scorer.config, part.file))
            with SilentReporter().track("scoring", None, "rows") as tracker:
                return files.score([file], tracker)
        except (ValueError, OSError) as error:
            return str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return (
                f"not enough memory in a worker ({str(error) or 'an allocation failed'}); hold the "
                "tables in fewer bytes with --table-precision int8, or say fewer --workers"
            )

    @cached_property
    def files(self) -> FileScorer:
        """The loaded model; relative paths mean what they do where the command was started."""
        try:
            os.chdir(self.folder)
        except OSError:
            for path in (self.run, self.request.source, self.output):
                if not is_address(path) and not Path(path).is_absolute():
                    raise ValueError(
                        f"{path}: lies below {self.folder}, which a worker does not find; name a "
                        "place on a file system that all nodes of the cluster share, or an address"
                    ) from None
        look_in_current_folder()
        import_modules(self.imports)
        use_cpus_of_ray()
        run = open_run(self.run)
        scorer = self.request.load(run)
        self.request.check_same(run, self.by)
        self.job = FolderJob(store_at(self.output), self.by)
        return FileScorer(scorer, self.request, self.found, run.training_columns())
