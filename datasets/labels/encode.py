"""Labels, where they are observed, row weights and GAUC groups."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, TaskConfig
from mmoe.datasets.labels.expressions import Values, evaluate_label
from mmoe.datasets.labels.formula import shown
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.places import find_column, place
from mmoe.datasets.values.columns import to_numbers
from mmoe.datasets.values.keys import codes_of, refuse_nested


@dataclass(frozen=True)
class _Label:
    values_N: np.ndarray  # float64, 0 where unobserved
    observed_N: np.ndarray


def encode_labels(
    config: RunConfig, table: pa.Table, origin: str, *, training: bool = False
) -> EncodedLabels:
    """Labels of every task.

    A label is unobserved where its column is empty, where its expression has no value, and where
    `observed_when` is not true (another task: where that task's label is not an observed 1).

    Args:
        config: Tasks, weight columns, data.group_column.
        table: N rows with the columns that these need.
        origin: What the user calls the data; starts error messages.
        training: These rows train: each binary task must have both classes among them.

    Raises:
        ValueError: A column is missing, a label is neither 0 nor 1 (or not finite), a weight is
            negative or missing, or a training label has one class only.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"},
        ...               {"name": "long", "label": "seconds > 30", "observed_when": "click"}]})
        >>> table = pa.table({"click": [1, 0, 1], "seconds": [40, None, 10]})
        >>> labels = encode_labels(config, table, "log.csv")
        >>> labels.labels_NT.tolist()
        [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
        >>> labels.observed_NT[:, 1].tolist()
        [True, False, True]
    """
    encoder = _LabelEncoder(config, table, origin)
    labels = [encoder.label(task.name) for task in config.tasks]
    weights = [
        _weights(task, label.observed_N, table, origin)
        for task, label in zip(config.tasks, labels, strict=True)
    ]
    encoded = EncodedLabels(
        labels_NT=np.stack([label.values_N for label in labels], axis=1).astype(np.float32),
        observed_NT=np.stack([label.observed_N for label in labels], axis=1),
        weights_NT=np.stack(weights, axis=1).astype(np.float32),
        groups_N=_groups(config, table, origin),
    )
    if training:
        check = TrainableCheck(config)
        check.add(encoded)
        check.finish(origin)
    return encoded


class TrainableCheck:
    """Whether labels, seen chunk by chunk, can be trained on.

    A loss needs observed labels, one of which counts; AUC and log-loss need both classes.
    """

    def __init__(self, config: RunConfig) -> None:
        self.tasks = config.tasks
        # ESMM learns a purchase's probability from rows too where its own label is not observed
        self.entire_space = config.model.kind == "esmm"
        self.rows = 0
        self.heaviest_T = np.zeros(len(self.tasks), np.float32)
        self.observed_T = np.zeros(len(self.tasks), np.int64)
        self.lowest_T = np.full(len(self.tasks), np.inf)
        self.highest_T = np.full(len(self.tasks), -np.inf)

    def add(self, labels: EncodedLabels) -> None:
        """More training rows."""
        self.rows += len(labels)
        for t in range(len(self.tasks)):
            observed_N = labels.observed_NT[:, t]
            weights = labels.weights_NT[observed_N | self.entire_space, t]
            self.heaviest_T[t] = max(self.heaviest_T[t], weights.max(initial=0))
            values = labels.labels_NT[observed_N, t]
            if len(values):
                self.observed_T[t] += len(values)
                self.lowest_T[t] = min(self.lowest_T[t], values.min())
                self.highest_T[t] = max(self.highest_T[t], values.max())

    def finish(self, origin: str) -> None:
        """Raises ValueError where a task has no label, no row that counts, or one class only."""
        for t, task in enumerate(self.tasks):
            observed = int(self.observed_T[t])
            if not observed:
                raise ValueError(
                    f"{origin}: task {task.name!r} has no observed label among {self.rows} "
                    f"training rows; check its label {shown(task.label)} and observed_when"
                    + (f" {shown(task.observed_when)}" if task.observed_when else "")
                )
            if not self.heaviest_T[t]:
                raise ValueError(
                    f"{origin}: column {task.weight_column!r} (weight_column of task "
                    f"{task.name!r}) is 0 on all {observed} training rows with a label, so "
                    "nothing would be learnt; check the column, or remove weight_column or the task"
                )
            if task.kind == "binary" and self.lowest_T[t] == self.highest_T[t]:
                raise ValueError(
                    f"{origin}: task {task.name!r} has one class only: all {observed} observed "
                    f"training labels ({shown(task.label)}) are {self.lowest_T[t]:g}, expected "
                    "both 0 and 1; check the label and the split, or remove the task"
                )


class _LabelEncoder:
    """Resolves each task's label once; `observed_when` may chain from task to task."""

    def __init__(self, config: RunConfig, table: pa.Table, origin: str) -> None:
        self.tasks = {task.name: task for task in config.tasks}
        self.table = table
        self.origin = origin
        self.done: dict[str, _Label] = {}

    def label(self, name: str, waiting: tuple[str, ...] = ()) -> _Label:
        if name in waiting:
            circle = " → ".join((*waiting[waiting.index(name) :], name))
            raise ValueError(
                f"task {name!r}: observed_when goes round in a circle ({circle}); remove one"
            )
        if name not in self.done:
            task = self.tasks[name]
            label = _own_label(task, self.table, self.origin)
            observed = label.observed_N & self._observed_when(task, (*waiting, name))
            self.done[name] = _Label(np.where(observed, label.values_N, 0.0), observed)
        return self.done[name]

    def _observed_when(self, task: TaskConfig, waiting: tuple[str, ...]) -> np.ndarray:
        condition = task.observed_when
        if condition is None:
            return np.ones(self.table.num_rows, bool)
        if condition in self.tasks:
            if self.tasks[condition].kind != "binary":
                raise ValueError(
                    f"task {task.name!r}: observed_when is the task {condition!r}, which is a "
                    f"regression; write a condition such as {self.tasks[condition].label} > 0"
                )
            other = self.label(condition, waiting)
            return other.observed_N & (other.values_N == 1)
        used_by = f"observed_when of task {task.name!r}"
        values = evaluate_label(condition, self.table, self.origin, used_by)
        flags = _zero_or_one(values, used_by, self.table, self.origin)
        return flags.observed_N & (flags.values_N == 1)


def _own_label(task: TaskConfig, table: pa.Table, origin: str) -> _Label:
    """The label before observed_when."""
    used_by = f"task {task.name!r}"
    values = evaluate_label(task.label, table, origin, used_by)
    if task.kind == "binary":
        return _zero_or_one(values, used_by, table, origin)
    if values.is_text:
        raise ValueError(
            f"{place(table, origin, _first(~values.missing))}: {used_by} is a regression, but its "
            f"label {shown(task.label)} is text; expected numbers"
        )
    numbers_N = values.data.astype(np.float64)
    infinite_N = ~np.isfinite(numbers_N) & ~values.missing
    if infinite_N.any():
        index = _first(infinite_N)
        raise ValueError(
            f"{place(table, origin, index)}: label {shown(task.label)} of {used_by} is "
            f"{numbers_N[index]}, expected a finite number; leave the cell empty or clip it"
        )
    # Losses are computed in float32; a label beyond its range would become infinite there.
    large_N = np.abs(numbers_N) > np.finfo(np.float32).max
    if large_N.any():
        index = _first(large_N)
        raise ValueError(
            f"{place(table, origin, index)}: label {shown(task.label)} of {used_by} is "
            f"{numbers_N[index]:g}, beyond float32; rescale it, such as log1p(`{task.label}`)"
        )
    return _Label(numbers_N, ~values.missing)


def _zero_or_one(values: Values, used_by: str, table: pa.Table, origin: str) -> _Label:
    """Flags and the numbers 0 and 1; anything else is named with its row."""
    observed_N = ~values.missing
    if values.is_text:
        wrong_N = observed_N
    elif values.is_flag:
        wrong_N = np.zeros(len(observed_N), bool)
    else:
        wrong_N = observed_N & (values.data != 0) & (values.data != 1)
    if wrong_N.any():
        index = _first(wrong_N)
        came = values.data[index]
        came = came.as_py() if isinstance(came, pa.Scalar) else came.item()
        raise ValueError(_not_binary(values.source, came, used_by, place(table, origin, index)))
    if values.is_text:  # an empty text column
        return _Label(np.zeros(len(observed_N)), observed_N)
    return _Label(values.data.astype(np.float64), observed_N)


def _not_binary(source: str | None, came: object, used_by: str, where: str) -> str:
    column = f"column {source!r}" if source else "the label"
    name = source if source is None or source.isidentifier() else f"`{source}`"
    hint = f"{name} == {came!r}" if isinstance(came, str) else f"{name or 'the expression'} > 0"
    return (
        f"{where}: {column} of {used_by} is {came!r}, expected 0 or 1 (or true, false, empty); "
        f'write an expression such as "{hint}", or `kind: regression`'
    )


def _weights(task: TaskConfig, observed_N: np.ndarray, table: pa.Table, origin: str) -> np.ndarray:
    if task.weight_column is None:
        return np.ones(table.num_rows)
    used_by = f"weight_column of task {task.name!r}"
    weights_N = to_numbers(table, task.weight_column, origin, used_by)
    usable_N = (weights_N >= 0) & np.isfinite(weights_N)
    wrong_N = observed_N & ~usable_N
    if wrong_N.any():
        index = _first(wrong_N)
        came = "empty" if np.isnan(weights_N[index]) else f"{weights_N[index]:g}"
        raise ValueError(
            f"{place(table, origin, index)}: column {task.weight_column!r} ({used_by}) is {came}, "
            "expected a number of 0 or more; mend the cell, or drop the row"
        )
    # Unobserved rows keep theirs: ESMM learns a purchase's probability from unclicked rows too
    return np.where(usable_N, weights_N, 0.0)


def _groups(config: RunConfig, table: pa.Table, origin: str) -> np.ndarray | None:
    """Codes by first appearance, −1 where the key is missing."""
    if config.data.group_column is None:
        return None
    return codes_of(find_groups(table, config.data.group_column, origin))[0]


def find_groups(table: pa.Table, name: str, origin: str) -> pa.ChunkedArray:
    """The column by which rows belong together.

    Raises:
        ValueError: It is not there, or holds what is no id.
    """
    column = find_column(table, name, origin, "data.group_column")
    refuse_nested(column, f"{origin}: column {name!r} (of data.group_column)")
    return column


def _first(mask_N: np.ndarray) -> int:
    return int(mask_N.argmax())
