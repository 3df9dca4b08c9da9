"""A fitted estimator: what is stored of its fit, its answers, its pictures, its explanation."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import Field
from sklearn.utils.validation import check_is_fitted

from mmoe.config import RunConfig, Stored, TaskConfig, read_model
from mmoe.datasets import BatchSource, required_columns
from mmoe.datasets.labels.expressions import columns_of, evaluate_label, quote
from mmoe.datasets.values.arrow import pc, plain
from mmoe.explain import (
    ExplainSettings,
    check_explainable,
    check_new_place,
    explain_ranker,
    write_explanation,
)
from mmoe.integrations.estimator_rows import (
    Rows,
    RowWeights,
    feature_rows,
    joined,
    label_rows,
    weight_column,
    with_weight_columns,
)
from mmoe.metrics import kind_of, kind_of_metrics
from mmoe.run import RunDirectory, SilentReporter, write_json
from mmoe.score import load
from mmoe.score.columns import output_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


_NUMBER = r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"


class FittedModel:
    """Answers in pandas, with the index of X.

    Args:
        folder: Of the run, whose model is read when it is first asked.
        config: Of the run.
        stored: What that does not say of the fit.
    """

    def __init__(self, folder: Path, config: RunConfig, stored: StoredFit) -> None:
        self.config, self.stored = config, stored
        # No attribute that is set later: predicting may not change an estimator
        self.loaded = cache(partial(load, folder))

    def predictions(self, X: Any) -> tuple[Rows, np.ndarray]:
        """Returns the rows of X, and predictions_NP for them."""
        needed = required_columns(self.config, labels=False)
        rows = feature_rows(X, needed=needed, names=self.stored.columns)
        rows.warn_of_mixed(self.stored.mixed)
        return rows, self.loaded().scorer.predictions(joined(rows, None), "X")

    def named(self, X: Any) -> pd.DataFrame:
        """Returns a column `pred_<task>` for each task, and what it predicts further."""
        rows, predictions_NP = self.predictions(X)
        return rows.out(output_columns(predictions_NP, self.config.tasks))

    def labels(self, X: Any) -> pd.DataFrame:
        """Returns what y would have held, a column for each task."""
        rows, predictions_NP = self.predictions(X)
        tasks = enumerate(self.config.tasks)
        return rows.out({task.name: self.label(t, predictions_NP[:, t]) for t, task in tasks})

    def label(self, t: int, predictions_N: np.ndarray) -> np.ndarray:
        """Turns predictions of the t-th task into what y would have held."""
        task = self.config.tasks[t]
        if task.outcomes is not None:
            return np.array(task.outcomes)[predictions_N.astype(np.int64)]
        decided_N = kind_of(task.kind).decide(predictions_N)
        if not kind_of(task.kind).is_event:
            return in_units_of_y(task, decided_N)
        return self.stored.labels.get(task.name, ZERO_ONE).written(decided_N.astype(bool))

    def judged(self, X: Any, y: Any, sample_weight: Any) -> tuple[RunConfig, BatchSource]:
        """Returns the config that rows with labels are judged by, and these rows."""
        rows = feature_rows(X, names=self.stored.columns)
        table, weights = joined(rows, label_rows(y, rows)), weight_column(sample_weight, rows)
        # Rows without weights have the weight columns of before the fit (see `training_rows`)
        config = with_weight_columns(self.config, self.stored.weights_before)
        if weights is not None:
            row_weights = RowWeights(config, table.column_names)
            config, table = row_weights.config, row_weights.added(table, weights)
        return config, BatchSource.of_table(table, self.loaded().encoder, "X", config)

    def explained(
        self, X: Any, y: Any, sample_weight: Any, settings: ExplainSettings
    ) -> "Explanation":
        """Explains the model on rows with labels.

        Raises:
            ValueError: Its gates choose between no experts, or no row has a label.
        """
        config, rows = self.judged(X, y, sample_weight)
        ranker, encoder = self.loaded().predictor.ranker, self.loaded().encoder
        check_explainable(ranker.network, "this estimator")
        found = explain_ranker(ranker, config, encoder, rows, settings, SilentReporter())
        return Explanation({"name": config.name, "origin": "X", **found})


def in_units_of_y(task: TaskConfig, predictions_N: np.ndarray) -> np.ndarray:
    """Undoes the scale on which a regression is trained: `y / 100`, `log1p(y)`.

    Any other expression is the unit of its own.

    Example:
        >>> task = TaskConfig(name="ms", label="log1p(ms)", kind="regression")
        >>> in_units_of_y(task, np.array([0.0, np.log(11)])).round(6).tolist()
        [0.0, 10.0]
    """
    try:
        names = columns_of(task.label)
    except ValueError:  # a column whose name is no expression
        return predictions_N
    if len(names) != 1:
        return predictions_N
    name = re.escape(quote(names[0]))
    if re.fullmatch(rf"log1p\({name}\)", task.label):
        return np.expm1(predictions_N)
    scaled = re.fullmatch(rf"{name} / ({_NUMBER})", task.label)
    return predictions_N * float(scaled[1]) if scaled else predictions_N


class RunPicturesMixin:
    """Draws the run of a fitted estimator: figures of the report.

    Attributes:
        run_directory_: Its folder.
    """

    run_directory_: Path

    def plot_gates(self) -> "Axes":
        """Returns pyplot axes with how much of each expert each task's gate uses.

        Raises:
            ValueError: The model has no gates.
        """
        from mmoe.report import gate_heatmap_figure

        gates = self._read().curves.get("gates") or []
        return _drawn(lambda figure: gate_heatmap_figure(gates, figure=figure))[0]

    def plot_learning_curves(self) -> np.ndarray:
        """Returns an array of pyplot axes: loss and validation metric of each task, by epoch."""
        from mmoe.report import learning_curve_figure

        run = self._read()
        tasks = list(run.metrics["tasks"])
        return _drawn(lambda figure: learning_curve_figure(run.history, tasks, figure=figure))

    def plot_roc(self) -> np.ndarray:
        """Returns an array of pyplot axes: each binary task's ROC on the held-out rows.

        Raises:
            ValueError: No task is binary.
        """
        from mmoe.report import roc_figure

        run = self._read()
        metrics = run.metrics["tasks"]
        ranked = {
            name: curves
            for name, curves in run.curves["tasks"].items()
            if kind_of_metrics(metrics.get(name, {})).is_event
        }
        if not ranked:
            raise ValueError("plot_roc: no task is binary, so there is no ROC to draw")
        return _drawn(lambda figure: roc_figure(ranked, metrics, figure=figure))

    def _read(self) -> Any:
        from mmoe.report.page import read_run

        check_is_fitted(self, "run_directory_")
        return read_run(self.run_directory_)


def _drawn(draw: "Callable[[Figure], Any]") -> np.ndarray:
    """The axes that are seen, of a new figure of pyplot: notebooks and `plt.show()` show it."""
    import matplotlib.pyplot as plt

    figure = plt.figure()
    try:
        draw(figure)
    except Exception:
        plt.close(figure)
        raise
    return np.array([axes for axes in figure.axes if axes.get_visible()], dtype=object)


@dataclass(frozen=True)
class Explanation:
    """Worth of each expert of a model to each task, as tables.

    Attributes:
        result: What `mmoe explain` writes as explain.json.
    """

    result: Mapping[str, Any]

    @property
    def experts(self) -> pd.DataFrame:
        """A row for each expert and task: share of the weights, changes without it, verdict.

        Changes are called as metrics, `auc`, with `auc_low` and `auc_high`, the ends of their 95 %
        intervals; `auc_refilled` is the change where the next pick takes the place.
        """
        rows = []
        for expert in self.result["experts"]:
            for task, found in expert["tasks"].items():
                row = {key: expert[key] for key in ("number", "level", "name")}
                row |= {"task": task, "share": found["share"]}
                row |= _columns(found["renormalised"])
                again = found["refilled"] or {}
                row |= {f"{key}_refilled": change["value"] for key, change in again.items()}
                rows.append({**row, "verdict": found["verdict"]})
        return pd.DataFrame(rows)

    @property
    def unneeded(self) -> list[int]:
        """Numbers of experts that surely nobody misses, each alone."""
        return list(self.result["unneeded"])

    @property
    def features(self) -> pd.DataFrame:
        """A row for each feature and task: changes where it is shuffled, and the verdict."""
        return pd.DataFrame(
            {"feature": one["name"], "task": task, **_columns(found["changes"]),
             "verdict": found["verdict"]}
            for one in self._asked("features")
            for task, found in one["tasks"].items()
        )  # fmt: skip

    @property
    def cosines(self) -> pd.DataFrame:
        """Cosines of the tasks' gradients on the layers that they share: a hint."""
        found: Any = self._asked("gradients")
        return pd.DataFrame(found["cosine"], index=found["tasks"], columns=found["tasks"])

    def save(self, folder: str | Path) -> Path:
        """Writes explain.json and a page of it, explain.html, whose path it returns.

        Raises:
            ValueError: The folder holds them already.
        """
        check_new_place(Path(folder))
        return write_explanation(self.result, Path(folder))

    def _asked(self, what: str) -> Sequence[Mapping[str, Any]]:
        if what not in self.result:
            raise ValueError(f"{what}: was not asked for; explain(X, y, {what}=True)")
        return self.result[what]


def _columns(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        key if end == "value" else f"{key}_{end}": change[end]
        for key, change in changes.items()
        for end in ("value", "low", "high")
    }
