"""Workers on Ray: `map_batches(BatchScorer, …)` of a data set, and those of a scored folder."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import torch

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.datasets.files.data_file import is_address
from mmoe.datasets.rows.sources import with_names
from mmoe.errors import is_out_of_memory
from mmoe.plugins import import_modules, look_in_current_folder
from mmoe.run import SilentReporter, open_run
from mmoe.run.store import store_at
from mmoe.score.file_scorer import FileScorer, InputColumns
from mmoe.score.folder import FolderJob, OfFolder, Part
from mmoe.score.guard import ScoreCounts
from mmoe.score.provenance import Provenance
from mmoe.score.scorer import ScoreRequest


class BatchScorer:
    """Scores the blocks of a data set of Ray: one call for each, with the same model.

    For `map_batches(BatchScorer, fn_constructor_kwargs={"run": RUN}, batch_format="pyarrow")`. A
    row's score is the bits that `mmoe score` writes, however Ray cuts and shuffles the rows (on the
    CPU). Each worker loads the model once and uses as many threads as Ray gave it CPUs.

    Args:
        run: A trained run, where every worker finds it, or its address.
        tasks: Those whose predictions are returned; None: all.
        keep: Columns to return before them, in this order; None: all there are.
        fused: Further columns by name, computed of predictions and columns, such as
            `{"value": "click^0.7 * purchase"}`; beside those of the config.
        table_precision: int8 or fp16: tables in fewer bits; None: as they were trained.
        device: To score on; auto: a GPU where Ray gave the worker one.

    Raises:
        ValueError: There is no such run, or no such task.
    """

    def __init__(
        self,
        run: str | Path,
        tasks: Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        fused: Mapping[str, str] | None = None,
        table_precision: ScoringPrecision | None = None,
        device: DeviceKind = "auto",
    ) -> None:
        use_own_cpus()
        request = ScoreRequest("rows", keep, False, tasks, fused, None, device, table_precision)
        self.rows = request.load(open_run(run))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Returns the kept columns of a block's rows, and what is predicted of them."""
        return self.rows.score(table)


@dataclass
class PartWorker:
    """Actor of `RayEngine`: loads the model once, then scores parts; Ray restarts one that dies.

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
        use_own_cpus()
        run = open_run(self.run)
        scorer = self.request.load(run, self.by)
        self.job = FolderJob(store_at(self.output), self.by)
        return FileScorer(scorer, self.request, self.found, run.training_columns())


def use_own_cpus() -> None:
    """Sets torch's and Arrow's threads to the CPUs that Ray gave this worker, if any.

    Ray says so to OpenMP alone (`OMP_NUM_THREADS`), and not where the user has set that.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return  # the process that asks, which has its threads to itself
    threads = max(1, int(context.get_assigned_resources().get("CPU", 1)))
    torch.set_num_threads(threads)
    pa.set_cpu_count(threads)
