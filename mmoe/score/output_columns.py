"""Predictions as the columns that a user gets: numbers, classes by their own names, fused ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.config.tasks import TaskConfig, prediction_columns
from mmoe.datasets.rows.locations import check_columns
from mmoe.datasets.rows.projection import column_uses
from mmoe.score.fused import fused_column, inputs_of
from mmoe.score.top_rows import RANK, Top


def output_columns(
    predictions_NP: np.ndarray, tasks: Sequence[TaskConfig]
) -> dict[str, np.ndarray]:
    """Names the columns of predictions, and writes those of classes as the classes.

    Args:
        predictions_NP: As `Predictor.predict` returns them.
        tasks: Of the run.

    Returns:
        Name → float32 [N], or the classes: int64 or text; NaN, or None, where a task does not
        exist in a row's domain.

    Example:
        >>> click = TaskConfig(name="click", label="click")
        >>> output_columns(np.array([[0.25]], np.float32), [click])
        {'pred_click': array([0.25], dtype=float32)}
    """
    names = prediction_columns(tasks)
    columns = [np.ascontiguousarray(predictions_NP[:, p]) for p in range(len(names))]
    for t, task in enumerate(tasks):
        if task.outcomes is not None:
            absent_N = np.isnan(columns[t])
            classes_N = np.where(absent_N, 0, columns[t]).astype(np.int64)
            columns[t] = np.array(task.outcomes)[classes_N]
            if absent_N.any():
                columns[t] = columns[t].astype(object)
                columns[t][absent_N] = None
    return dict(zip(names, columns, strict=True))


def arrow_columns(predictions_NP: np.ndarray, tasks: Sequence[TaskConfig]) -> dict[str, pa.Array]:
    """Makes the same columns in Arrow, null where a task does not exist in a row's domain.

    Example:
        >>> buy = TaskConfig(name="buy", label="buy", domains=["shop"])
        >>> arrow_columns(np.array([[0.25], [np.nan]], np.float32), [buy])["pred_buy"].null_count
        1
    """
    schema = output_schema(tasks)
    partial = {
        name for task in tasks if task.domains is not None for name in prediction_columns([task])
    }
    return {
        name: pa.array(column_N, schema.field(name).type, from_pandas=name in partial)
        for name, column_N in output_columns(predictions_NP, tasks).items()
    }


def output_schema(tasks: Sequence[TaskConfig]) -> pa.Schema:
    """Returns names and types of the same columns in Arrow.

    Example:
        >>> output_schema([TaskConfig(name="click", label="click")]).types
        [DataType(float)]
    """
    types = dict.fromkeys(prediction_columns(tasks), pa.float32())
    for task in tasks:
        if task.outcomes is not None:
            types[f"pred_{task.name}"] = pa.array(task.outcomes).type
    return pa.schema(list(types.items()))


def columns_to_read(
    config: RunConfig,
    columns: "ScoreColumns",
    keep: Sequence[str],
    there: Sequence[str],
    origin: str,
    kept_by: str = "keep",
) -> dict[str, str]:
    """Returns the columns that scoring reads, each with what needs it.

    Args:
        config: Of the run.
        columns: That are written.
        keep: To copy.
        there: That the input has.
        origin: What the user calls the input; starts error messages.
        kept_by: What the user calls `keep`.

    Raises:
        ValueError: Some are not there; names all that features and `keep` need.
    """
    uses = dict.fromkeys(keep, kept_by) | column_uses(config, labels=False)
    check_columns(uses, there, origin)
    return columns.inputs(there, origin) | uses


@dataclass(frozen=True)
class ScoreColumns:
    """Which columns scoring writes: predictions of some tasks, and what is computed of any.

    Attributes:
        tasks: Of the run.
        chosen: Names of those whose predictions are written; None: all.
        fused: Expressions by the name of their column.

    Raises:
        ValueError: A task that is not there, or a column's name that is taken.

    Example:
        >>> tasks = [TaskConfig(name=name, label=name) for name in ("click", "buy")]
        >>> ScoreColumns(tasks, ["buy"], {"value": "click * buy"}).names
        ['pred_buy', 'value']
    """

    tasks: Sequence[TaskConfig]
    chosen: Sequence[str] | None = None
    fused: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        there = [task.name for task in self.tasks]
        if self.chosen is not None and not self.chosen:
            raise ValueError(f"--tasks: expected one at least; there: {', '.join(there)}")
        for name in self.chosen or ():
            if name not in there:
                close = get_close_matches(name, there, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there: {', '.join(there)}"
                raise ValueError(f"--tasks {name}: the run has no such task ({hint})")
        for name in self.fused:
            if name in prediction_columns(self.tasks):
                raise ValueError(
                    f"fused column {name!r}: the predictions are called that; name it otherwise"
                )

    @property
    def names(self) -> list[str]:
        """Of all columns, in their order."""
        return [*prediction_columns(self._written), *self.fused]

    @property
    def schema(self) -> pa.Schema:
        """Names and types of all columns, in their order."""
        types = output_schema(self.tasks)
        fused = [pa.field(name, pa.float64()) for name in self.fused]
        return pa.schema([*(types.field(n) for n in prediction_columns(self._written)), *fused])

    def inputs(self, columns: Sequence[str], origin: str) -> dict[str, str]:
        """Finds the columns of the input that fused columns read, each with what needs it.

        Args:
            columns: Of the input.
            origin: Starts error messages.

        Raises:
            ValueError: One names neither a task nor a column.
        """
        return inputs_of(self.fused, list(self._by_short_name), columns, origin)

    def of(self, predictions_NP: np.ndarray, table: pa.Table, origin: str) -> dict[str, pa.Array]:
        """Makes the columns of N rows.

        Args:
            predictions_NP: As `Predictor.predict` returns them.
            table: The rows, with what fused columns read.
            origin: Starts error messages.
        """
        predicted = arrow_columns(predictions_NP, self.tasks)
        written = {name: predicted[name] for name in prediction_columns(self._written)}
        if not self.fused:
            return written
        known = {name: predicted[column] for name, column in self._by_short_name.items()}
        others = {name: table[name] for name in table.column_names if name not in known}
        rows = pa.table(known | others)
        return written | {
            name: fused_column(name, expression, rows, origin)
            for name, expression in self.fused.items()
        }

    def check_top(self, top: Top) -> Top:
        """Returns the same with the column's whole name: `click` may stand for `pred_click`.

        Raises:
            ValueError: What rows are sorted by is no column of numbers that is written.
        """
        if RANK in self.names:
            raise ValueError(f"--top adds a column {RANK!r}; give that of --fuse another name")
        by = self._by_short_name.get(top.by, top.by) if top.by not in self.fused else top.by
        classes = {f"pred_{task.name}" for task in self.tasks if task.outcomes is not None}
        known = [name for name in self.names if name not in classes]
        if by not in known:
            raise ValueError(f"--by {top.by}: expected one of the columns {', '.join(known)}")
        return replace(top, by=by)

    @property
    def _written(self) -> list[TaskConfig]:
        return [t for t in self.tasks if self.chosen is None or t.name in self.chosen]

    @property
    def _by_short_name(self) -> dict[str, str]:
        """What expressions call the predictions: `click`, `spend_positive`."""
        return {name.removeprefix("pred_"): name for name in prediction_columns(self.tasks)}
