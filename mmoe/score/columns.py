"""Columns of scores: predictions, what is computed of them, and the input's, read or kept."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, TaskConfig, prediction_columns
from mmoe.datasets import required_columns
from mmoe.datasets.files.nested import candidate_fields
from mmoe.datasets.labels.expressions import columns_of, evaluate
from mmoe.datasets.rows.frames import is_row_dicts
from mmoe.datasets.rows.locations import check_columns, missing_column
from mmoe.datasets.rows.projection import column_uses
from mmoe.score.top_rows import RANK, Top

# A caret that stands in no name or text
_POWER = re.compile(r"(`[^`]*`|'[^']*'|\"[^\"]*\")|\^")


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


def in_form_of(
    rows: Any, predictions_NP: np.ndarray, of_row_N: np.ndarray | None, tasks: Sequence[TaskConfig]
) -> Any:
    """Makes the same columns in the form of the rows: pandas, polars, Arrow, dicts or arrays.

    Args:
        rows: That were predicted.
        predictions_NP: As `Predictor.predict` returns them.
        of_row_N: The number of each one's row, where a row has several; None: each has one.
        tasks: Of the run.
    """
    library = type(rows).__module__.partition(".")[0]
    if library == "pandas":
        index = rows.index if of_row_N is None else rows.index.take(of_row_N)
        if all(task.outcomes is None for task in tasks):  # five times as fast as by name
            return type(rows)(predictions_NP, index=index, columns=prediction_columns(tasks))
        return type(rows)(output_columns(predictions_NP, tasks), index=index)
    columns = output_columns(predictions_NP, tasks)
    if is_row_dicts(rows):
        by_row = zip(*(column_N.tolist() for column_N in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in by_row]
    if isinstance(rows, Mapping):
        return columns
    if library == "polars":
        return type(rows)(columns)
    made = pa.RecordBatch if isinstance(rows, pa.RecordBatch) else pa.Table
    return made.from_pydict(arrow_columns(predictions_NP, tasks), output_schema(tasks))


class ScoreColumns:
    """Columns that scoring reads and those that it writes; known before a model is loaded.

    Args:
        config: Of the run.
        tasks: Names of those whose predictions are written; None: all.
        keep: Columns of the input to write before them, in this order; None: all there are.
        fused: Expressions by the name of their column, beside those of the config.

    Raises:
        ValueError: A task that is not there, or a column's name that is taken.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> tasks = [{"name": name, "label": name} for name in ("click", "buy")]
        >>> age = {"kind": "numeric", "name": "age"}
        >>> config = config_from_dict({"features": [age], "tasks": tasks})
        >>> ScoreColumns(config, tasks=["buy"], fused={"value": "click * buy"}).names
        ['pred_buy', 'value']
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        tasks: Sequence[str] | None = None,
        keep: Sequence[str] | None = (),
        fused: Mapping[str, str] | None = None,
    ) -> None:
        self.config, self.tasks = config, config.tasks
        self.keep = None if keep is None else list(dict.fromkeys(keep))
        self.fused: dict[str, str] = {**config.score.fused, **(fused or {})}
        there = [task.name for task in self.tasks]
        if tasks is not None and not tasks:
            raise ValueError(f"--tasks: expected one at least; there: {', '.join(there)}")
        for name in tasks or ():
            if name not in there:
                close = get_close_matches(name, there, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there: {', '.join(there)}"
                raise ValueError(f"--tasks {name}: the run has no such task ({hint})")
        for name in self.fused:
            if name in prediction_columns(self.tasks):
                raise ValueError(
                    f"fused column {name!r}: the predictions are called that; name it otherwise"
                )
        written = [task for task in self.tasks if tasks is None or task.name in tasks]
        self._predicted = prediction_columns(written)

    @property
    def names(self) -> list[str]:
        """Names of the columns that are added, in their order."""
        return [*self._predicted, *self.fused]

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns that are added, in their order."""
        types = output_schema(self.tasks)
        fused = [pa.field(name, pa.float64()) for name in self.fused]
        return pa.schema([*(types.field(name) for name in self._predicted), *fused])

    def reads(
        self, there: Sequence[str], origin: str = "rows", kept_by: str = "keep"
    ) -> dict[str, str]:
        """Returns the columns of the input that are read, each with what needs it.

        Args:
            there: That the input has.
            origin: What the user calls the input; starts error messages.
            kept_by: What the user calls `keep`.

        Raises:
            ValueError: Some are not there; names all that features and `keep` need. Or an
                expression names neither a task nor a column.
        """
        uses = dict.fromkeys(self.kept(there), kept_by) | column_uses(self.config, labels=False)
        check_columns(uses, there, origin)
        return self._inputs_of_fused(there, origin) | uses

    def _inputs_of_fused(self, there: Sequence[str], origin: str) -> dict[str, str]:
        """The columns of the input that fused columns read, each with what needs it."""
        needed: dict[str, str] = {}
        predicted = self._by_short_name
        for name, expression in self.fused.items():
            used_by = f"fused column {name!r}"
            try:
                named = columns_of(_as_label(expression))
            except ValueError as error:
                raise ValueError(f"{used_by}: {error}") from None
            for column in named:
                if column not in predicted and column not in there:
                    known = dict.fromkeys([*predicted, *there])
                    raise ValueError(missing_column(column, known, origin, used_by))
                if column not in predicted:
                    needed.setdefault(column, used_by)
        return needed

    def needs(
        self,
        there: Sequence[str],
        origin: str = "rows",
        kept_by: str = "keep",
        further: Sequence[str] = (),
    ) -> dict[str, str]:
        """Returns what `reads` does, where kept columns may also be written beside the others.

        Args:
            there: That the input has.
            origin: What the user calls the input; starts error messages.
            kept_by: What the user calls `keep`.
            further: Names of columns that are added beside ours.

        Raises:
            ValueError: As `reads`; or a kept one is called like what is added.
        """
        uses = self.reads(there, origin, kept_by)
        for name in self.kept(there):
            if name in self.names or name in further:
                raise ValueError(
                    f"--keep {name}: a column that is written beside it is called that; rename the "
                    f"column in {origin}, or that of --fuse"
                )
        return uses

    def kept(self, there: Sequence[str]) -> list[str]:
        """Returns the columns to copy, of an input that has these."""
        return list(there) if self.keep is None else self.keep

    def written(self, there: pa.Schema) -> pa.Schema:
        """Returns names and types of all columns, the kept ones first, for rows of a schema."""
        return pa.schema([*map(there.field, self.kept(there.names)), *self.schema])

    def rows_schema(self, rows: pa.Schema, origin: str = "rows") -> pa.Schema:
        """Returns the columns that rows have: those of candidates, where rows are requests.

        Args:
            rows: As they come.
            origin: What the user calls them; starts error messages.

        Raises:
            ValueError: Candidates are no lists of structs.
        """
        requests = self.config.data.requests
        candidates = None if requests is None else requests.candidates
        if candidates is None or candidates not in rows.names:
            return rows
        known = required_columns(self.config, labels=False)
        fields = candidate_fields(rows, candidates, origin, known)
        return pa.schema([*(f for f in rows if f.name != candidates), *fields])

    def of(self, predictions_NP: np.ndarray, table: pa.Table, origin: str) -> dict[str, pa.Array]:
        """Makes the columns of N rows; a fused one is null where no finite number comes of it.

        Args:
            predictions_NP: As `Predictor.predict` returns them.
            table: The rows, with what fused columns read.
            origin: Starts error messages.
        """
        predicted = arrow_columns(predictions_NP, self.tasks)
        written = {name: predicted[name] for name in self._predicted}
        if not self.fused:
            return written
        known = {name: predicted[column] for name, column in self._by_short_name.items()}
        others = {name: table[name] for name in table.column_names if name not in known}
        rows = pa.table(known | others)
        for name, expression in self.fused.items():
            used_by = f"fused column {name!r}"
            values = evaluate(_as_label(expression), rows, origin, used_by)
            if values.is_text:
                raise ValueError(f"{origin}: {used_by}, {expression!r}: gives text; write numbers")
            numbers_N = values.data.astype("float64")
            missing_N = values.missing | ~np.isfinite(numbers_N)
            written[name] = pa.array(numbers_N, mask=missing_N)
        return written

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
    def _by_short_name(self) -> dict[str, str]:
        """Returns the predictions by their names in expressions: `click`, `spend_positive`."""
        return {name.removeprefix("pred_"): name for name in prediction_columns(self.tasks)}


def _as_label(expression: str) -> str:
    """Writes an expression with Python's sign of a power, which binds as on paper."""
    return _POWER.sub(lambda match: match.group(1) or "**", expression)
