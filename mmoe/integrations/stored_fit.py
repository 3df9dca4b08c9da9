"""Stored fit of an estimator: estimator.json, and the run's files in a pickle."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import RunConfig, Stored, TaskConfig, read_model
from mmoe.datasets import required_columns
from mmoe.datasets.labels.expressions import columns_of, evaluate_label
from mmoe.datasets.values.arrow import pc, plain
from mmoe.metrics import kind_of
from mmoe.run import RunDirectory, write_json

_FILE = "estimator.json"


class LabelValues(Stored):
    """The two values of a binary label.

    Attributes:
        values: In sorted order.
        positive: The place of the one that the task is the probability of.
    """

    values: list[str | bool | int | float] = Field(min_length=2, max_length=2)
    positive: int = Field(ge=0, le=1)

    @property
    def classes(self) -> np.ndarray:
        """Array of both values, sorted, as scikit-learn's `classes_`."""
        return np.array(self.values)

    def written(self, positive_N: np.ndarray) -> np.ndarray:
        """Returns the value for each row: the positive one where this is so."""
        return self.classes[np.where(positive_N, self.positive, 1 - self.positive)]


ZERO_ONE = LabelValues(values=[0, 1], positive=1)


def label_values(config: RunConfig, table: pa.Table) -> dict[str, LabelValues]:
    """Finds the two values of each binary label that is one column of two values.

    Args:
        config: Says how 0 and 1 are made of it.
        table: All rows that were fitted to.

    Returns:
        Task → values; `ZERO_ONE` where it is numbers, or made of several columns or values.
    """
    return {
        task.name: _values(task, table) or ZERO_ONE
        for task in config.tasks
        if kind_of(task.kind).is_event
    }


def _values(task: TaskConfig, table: pa.Table) -> LabelValues | None:
    try:
        columns = [task.label] if task.label in table.column_names else columns_of(task.label)
    except ValueError:  # training says so, and names the task
        return None
    if len(columns) != 1 or columns[0] not in table.column_names:
        return None
    found = pc.unique(plain(table[columns[0]]).drop_null())
    values = sorted(value for value in found.to_pylist() if value == value)
    if len(values) != 2 or not all(isinstance(v, str | bool | int | float) for v in values):
        return None
    if not any(isinstance(value, str | bool) for value in values) and values == [0, 1]:
        return None  # also where missing ones have made them floats
    pair = pa.table({columns[0]: pa.array(values, found.type)})
    made = evaluate_label(task.label, pair, "y", f"task {task.name!r}")
    outcomes = [] if made.is_text else np.asarray(made.data, np.float64).tolist()
    if sorted(outcomes) != [0.0, 1.0]:
        return None
    return LabelValues(values=values, positive=outcomes.index(1.0))


class StoredFit(Stored):
    """Facts about what a run was fitted to that its config does not say.

    Attributes:
        labels: Task → the two values of its label.
        columns: Of X.
        named: They have names of their own; an array's have not.
        mixed: Those of numbers and texts, which were read as text.
        weights_before: Task → its weight column beside `sample_weight`; empty without that.
    """

    labels: dict[str, LabelValues]
    columns: list[str]
    named: bool
    mixed: list[str] = Field(default_factory=list)
    weights_before: dict[str, str | None] = Field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes the file into the run's folder."""
        write_json(folder / _FILE, self.model_dump())

    @classmethod
    def read(cls, run: RunDirectory) -> "StoredFit":
        """Reads the file; of a run that `mmoe train` made, what the config says.

        Raises:
            ValueError: It is damaged.
        """
        if not (run.path / _FILE).is_file():
            columns = required_columns(run.config(), labels=False)
            return cls(labels={}, columns=columns, named=True)
        return read_model(run.path / _FILE, cls, "train again")


def pack_files(folder: Path) -> dict[str, bytes]:
    """Reads all files of a folder: their paths in it, and what they hold."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unpack_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes such files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
