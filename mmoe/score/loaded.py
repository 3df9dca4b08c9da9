"""`load`: a trained run as one object, which scores whatever form rows come in."""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmoe.config import DeviceKind, ScoringPrecision
from mmoe.datasets.rows.frames import is_row_dicts
from mmoe.run import RunDirectory, open_run
from mmoe.score.columns import in_form_of, output_schema
from mmoe.score.scorer import Scorer, ScoreRequest


def load(
    run: str | Path | RunDirectory,
    device: DeviceKind = "auto",
    *,
    table_precision: ScoringPrecision | None = None,
    budget: int | None = None,
) -> "LoadedRun":
    """Returns a trained run's best model, ready to score.

    Args:
        run: Folder of a trained run, or its address (`s3://…`), which is copied once per host.
        device: To score on, whatever the run was trained on; auto: a GPU where there is one.
        table_precision: int8 or fp16: embeddings in fewer bits; None: as they were trained.
        budget: Experts that one row computes at most; None: `score.budget` of the run's config.

    Raises:
        ValueError: It is no trained run, or cannot be read; there is no such device or precision.

    Example:
        >>> import mmoe
        >>> mmoe.load("runs/mine").predict({"user_id": [7], "price": [1.5]})  # doctest: +SKIP
        {'pred_click': array([0.31], dtype=float32)}
    """
    request = ScoreRequest(device=device, table_precision=table_precision, budget=budget)
    return LoadedRun(request.load(run if isinstance(run, RunDirectory) else open_run(run)))


class LoadedRun:
    """A trained model that answers rows in the form in which they come, from any thread.

    Args:
        scorer: Of the run.

    Attributes:
        predictor: Of `load_predictor`, the layer below: rows in, an array out.
        encoder: Likewise.
        config: Likewise.
        tasks: Names of the tasks; predictions are called `pred_<task>`.
        columns: Names of the columns that are read; others may be there.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.config = scorer, scorer.config
        self.predictor, self.encoder = scorer.predictor, scorer.encoder
        self.tasks = [task.name for task in self.config.tasks]
        self.columns = scorer.features

    def __repr__(self) -> str:
        tasks, columns = ", ".join(self.tasks), len(self.columns)
        return f"LoadedRun({self.config.name!r}, tasks: {tasks}; reads {columns} columns)"

    def predict(self, rows: Any) -> Any:
        """Returns a column `pred_<task>` for each task, in the form in which the rows came.

        Args:
            rows: N rows, of any order of columns: a pandas DataFrame (answered with one, its index
                kept), an Arrow table, batch or reader of batches, a polars DataFrame, a mapping of
                names to columns (answered with arrays), a list of dicts, each a row (answered with
                one). With `data.requests.candidates` a row is a request, and answered by a row for
                each of its candidates. Or batches of them: an iterator, or a list of tables; they
                are answered by an iterator, which reads one batch at a time.

        Returns:
            Probabilities of binary tasks, values of regressions, float32 [N] each; of kinds that
            predict more, columns `pred_<task>_<what>` behind them.

        Raises:
            ValueError: A column is missing or a value does not fit; names it, and the row.
        """
        if isinstance(rows, str | PathLike):
            raise ValueError(
                f"rows: expected rows in memory, got the path {str(rows)!r}; files are scored by "
                "`mmoe score`, or mmoe.score.score_files"
            )
        tables = isinstance(rows, list | tuple) and bool(rows) and not is_row_dicts(rows)
        if not tables and not isinstance(rows, Iterator | pa.RecordBatchReader):
            return self._answer(rows)
        answers = (self._answer(batch, f"batch {n}") for n, batch in enumerate(rows, start=1))
        if isinstance(rows, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(output_schema(self.config.tasks), answers)
        return answers

    def _answer(self, rows: Any, origin: str | None = None) -> Any:
        return in_form_of(rows, *self.scorer.answer(rows, origin), self.config.tasks)
