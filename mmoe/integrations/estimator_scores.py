"""`FittedModel`: a fitted run that answers X with predictions, or with labels as y had them."""

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmoe.config import RunConfig, TaskConfig
from mmoe.datasets import BatchSource, required_columns
from mmoe.datasets.labels.expressions import columns_of, quote
from mmoe.integrations.estimator_rows import Rows, feature_rows, joined, judged_rows
from mmoe.integrations.stored_fit import ZERO_ONE, StoredFit
from mmoe.metrics import kind_of
from mmoe.score import load
from mmoe.score.columns import output_columns

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
        rows, before = feature_rows(X, names=self.stored.columns), self.stored.weights_before
        config, table = judged_rows(self.config, before, rows, y, sample_weight)
        return config, BatchSource.of_table(table, self.loaded().encoder, "X", config)


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
