"""What runs in a worker of `mmoe score --engine ray`: the model, and one part at a time."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mmoe.datasets.files.data_file import is_address
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import is_out_of_memory
from mmoe.integrations.ray import use_own_cpus
from mmoe.plugins import import_modules, look_in_current_folder
from mmoe.run import open_run
from mmoe.run.console import SilentReporter
from mmoe.run.store import store_at
from mmoe.score.file_scorer import FileScorer, InputColumns, ScoreRequest, ToWrite
from mmoe.score.folder import FolderJob, OfFolder, OutputMode, Part
from mmoe.score.guard import Counter, ScoreCounts
from mmoe.score.provenance import Provenance


@dataclass(frozen=True)
class Order:
    """What every worker is sent; plain values.

    Attributes:
        run: That scores.
        request: What is asked for.
        found: Of the input.
        by: What scores, as it was looked at before.
        output: The folder.
        mode: Of what is there.
        imports: Modules with kinds of the user's own.
        folder: That the command was started in, of which relative paths are meant.
    """

    run: str
    request: ScoreRequest
    found: InputColumns
    by: Provenance
    output: str
    mode: OutputMode
    imports: tuple[str, ...]
    folder: str


class PartWorker:
    """An actor, which Ray starts again where it dies: loads the model once, then scores parts."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.files: FileScorer | None = None

    def score(self, part: Part | None) -> ScoreCounts | str:
        """Writes one part into its place in the folder, and its record.

        Args:
            part: Which; None: the model is loaded, and that is all.

        Returns:
            What was counted of its rows. Text: what the user can mend, as not all exceptions come
            whole from another process.
        """
        try:
            if self.files is None:
                self.files = self._load()
            if part is None:
                return ScoreCounts()
            file = ToWrite(self.named(part.file), OfFolder(self.job, part), part.span)
            with SilentReporter().track("scoring", None, "rows") as tracker:
                return self.files.score([file], tracker)
        except (ValueError, OSError) as error:
            return str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return (
                f"not enough memory in a worker ({str(error) or 'an allocation failed'}); hold the "
                "tables in fewer bytes with --table-precision int8, or say fewer --workers"
            )

    def _load(self) -> FileScorer:
        order = self.order
        _go_to(order)
        look_in_current_folder()
        import_modules(order.imports)
        use_own_cpus()
        run = open_run(order.run)
        scorer = order.request.load(run, order.by)
        self.named = partial(with_names, scorer.config)
        self.job = FolderJob(store_at(order.output), order.by, order.mode, [], [])
        counter = Counter(scorer.encoder, run.training_columns())
        return FileScorer(scorer, order.request, order.found, counter)


def _go_to(order: Order) -> None:
    """Makes relative paths mean, and messages say, what they do where the command was started."""
    try:
        os.chdir(order.folder)
    except OSError:
        paths = (order.run, order.request.source, order.output)
        relative = [p for p in paths if not is_address(p) and not Path(p).is_absolute()]
        if relative:
            raise ValueError(
                f"{relative[0]}: lies below {order.folder}, which a worker does not find; name a "
                "place on a file system that all nodes of the cluster share, or an address"
            ) from None
