"""`load`: a trained run as one object, which scores whatever form rows come in."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import DeviceKind, RunConfig, ScoringPrecision
from mmoe.config.tasks import prediction_columns
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.frames import is_row_dicts
from mmoe.predictor import Predictor, load_predictor
from mmoe.run.addresses import open_run
from mmoe.run.directory import RunDirectory
from mmoe.score.columns import arrow_columns, output_columns, output_schema
from mmoe.score.scorer import Scorer


def load(
    run: str | Path | RunDirectory,
    device: DeviceKind = "auto",
    *,
    table_precision: ScoringPrecision | None = None,
) -> "LoadedRun":
    """Returns a trained run's best model, ready to score.

    Args:
        run: The folder that `mmoe train` or an estimator's `save` wrote, or an address of one
            (`s3://…`), which is copied once per host.
        device: To score on, whatever the run was trained on; auto: a GPU where there is one.
        table_precision: int8 or fp16: embeddings in fewer bits; None: as they were trained.

    Raises:
        ValueError: It is no trained run, or cannot be read; there is no such device or precision.

    Example:
        >>> import mmoe
        >>> mmoe.load("runs/mine").predict({"user_id": [7], "price": [1.5]})  # doctest: +SKIP
        {'pred_click': array([0.31], dtype=float32)}
    """
    folder = run if isinstance(run, RunDirectory) else open_run(run)
    return LoadedRun(*load_predictor(folder, device, table_precision=table_precision))


class LoadedRun:
    """A trained model that answers rows in the form in which they come, from any thread.

    Args:
        predictor: Of `load_predictor`, the layer below: rows in, an array out.
        encoder: Likewise.
        config: Likewise.

    Attributes:
        tasks: Names of the tasks; predictions are called `pred_<task>`.
        columns: Names of the columns that are read; others may be there.
    """

    def __init__(self, predictor: Predictor, encoder: FeatureEncoder, config: RunConfig) -> None:
        self.predictor, self.encoder, self.config = predictor, encoder, config
        self.scorer = Scorer(predictor, encoder, config)
        self.tasks = [task.name for task in config.tasks]
        self.columns = self.scorer.features

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
        if isinstance(rows, pa.RecordBatchReader):
            schema = output_schema(self.config.tasks)
            return pa.RecordBatchReader.from_batches(schema, self._of_batches(rows))
        tables = isinstance(rows, list | tuple) and bool(rows) and not is_row_dicts(rows)
        if tables or isinstance(rows, Iterator):
            return self._of_batches(rows)
        return self._like(rows, *self.scorer.answer(rows))

    def _of_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches, start=1):
            yield self._like(batch, *self.scorer.answer(batch, f"batch {number}"))

    def _like(self, rows: Any, predictions_NT: np.ndarray, of_row_N: np.ndarray | None) -> Any:
        """The predictions in the form of the rows."""
        tasks, library = self.config.tasks, type(rows).__module__.partition(".")[0]
        if library == "pandas":
            index = rows.index if of_row_N is None else rows.index.take(of_row_N)
            if all(task.outcomes is None for task in tasks):  # five times as fast as by name
                return type(rows)(predictions_NT, index=index, columns=prediction_columns(tasks))
            return type(rows)(output_columns(predictions_NT, tasks), index=index)
        columns = output_columns(predictions_NT, tasks)
        if is_row_dicts(rows):
            by_row = zip(*(column_N.tolist() for column_N in columns.values()), strict=True)
            return [dict(zip(columns, row, strict=True)) for row in by_row]
        if isinstance(rows, Mapping):
            return columns
        if library == "polars":
            return type(rows)(columns)
        made = pa.RecordBatch if isinstance(rows, pa.RecordBatch) else pa.Table
        return made.from_pydict(arrow_columns(predictions_NT, tasks), output_schema(tasks))
