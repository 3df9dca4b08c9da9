"""What runs in a worker of `mmoe score --engine ray`: the model, and one part at a time."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mmoe.datasets.files.data_file import is_address
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import is_out_of_memory
from mmoe.integrations.ray import use_own_cpus
from mmoe.plugins import import_modules, look_in_current_folder
from mmoe.run import open_run
from mmoe.run.store import store_at
from mmoe.score.counts import Counter, ScoreCounts
from mmoe.score.file_scorer import FileScorer, InputColumns, ScoreRequest, ToWrite
from mmoe.score.folder import FolderJob, OfFolder, OutputMode, Part
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


@dataclass(frozen=True)
class Answer:
    """What came of an order.

    Attributes:
        counts: Of the rows that were scored.
        refused: What the user can mend; None: all went well.
    """

    counts: ScoreCounts = field(default_factory=ScoreCounts)
    refused: str | None = None


class PartWorker:
    """An actor: loads the model once, then scores parts into their places in the folder."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.scored = _Counting()

    def load(self) -> Answer:
        """Loads the model."""
        return _answered(self._load)

    def score(self, part: Part) -> Answer:
        """Writes one part, and its record."""
        self.scored = _Counting()
        return _answered(partial(self._score, part))

    def rows_so_far(self) -> int:
        """Counts the rows of the part in work that are done; another thread asks."""
        return self.scored.rows

    def _load(self) -> Answer:
        order = self.order
        _go_to(order)
        look_in_current_folder()
        import_modules(order.imports)
        use_own_cpus()
        run = open_run(order.run)
        scorer = order.request.load(run, order.by)
        self.named = partial(with_names, scorer.config)
        counter = Counter(scorer.encoder, run.training_columns())
        self.files = FileScorer(scorer, order.request, order.found, counter)
        self.job = FolderJob(store_at(order.output), order.by, order.mode, [], [])
        return Answer()

    def _score(self, part: Part) -> Answer:
        file = ToWrite(self.named(part.file), OfFolder(self.job, part), part.span)
        return Answer(self.files.score([file], self.scored))


class _Counting:
    """A tracker that somebody looks at."""

    def __init__(self) -> None:
        self.rows = 0

    def advance(self, amount: int, note: str = "") -> None:
        self.rows += amount


def _answered(work: Callable[[], Answer]) -> Answer:
    """What the user can mend is an answer: not all exceptions come whole from another process."""
    try:
        return work()
    except (ValueError, OSError) as error:
        return Answer(refused=str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Answer(
            refused=f"not enough memory in a worker ({str(error) or 'an allocation failed'}); hold "
            "the tables in fewer bytes with --table-precision int8, or say fewer --workers"
        )


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
