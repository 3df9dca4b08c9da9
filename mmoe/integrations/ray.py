"""A run on Ray: `ray.data.read_parquet(…).map_batches(BatchScorer, …)`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.process_settings import use_cpus_of_ray
from mmoe.run import open_run
from mmoe.score import ScoreRequest


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
        use_cpus_of_ray()
        request = ScoreRequest("rows", keep, False, tasks, fused, None, device, table_precision)
        self.rows = request.load(open_run(run))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Returns the kept columns of a block's rows, and what is predicted of them."""
        return self.rows.score(table)
