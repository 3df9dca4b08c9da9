"""Logistic regression and boosted trees, as they come and lightly tuned."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline

from benchmarks.first_try.careful import Columns, for_linear, for_trees

_TRIALS = 8
_TUNED_ON = 60_000  # rows that a trial is fitted on

# From the settings of a trial to an unfitted model
Build = Callable[[Mapping[str, Any]], Pipeline]


@dataclass(frozen=True)
class Rival:
    """A model's predictions on the test rows.

    Attributes:
        name: Of the model.
        scores_N: Probabilities.
        settings: What was chosen.
    """

    name: str
    scores_N: np.ndarray
    settings: Mapping[str, Any]


def rivals(
    columns: Columns, parts: Mapping[str, pd.DataFrame], task: str, test: pd.DataFrame
) -> list[Rival]:
    """Fits both models, as they come and tuned on the validation rows, to one task.

    Args:
        columns: What each column is used as.
        parts: `train` and `validation`.
        task: Name of the label; rows without one are left out.
        test: Rows to predict.
    """
    train, validation = (
        part.loc[part[task].notna()] for part in (parts["train"], parts["validation"])
    )

    def linear(settings: Mapping[str, Any]) -> Pipeline:
        model = LogisticRegression(C=settings["C"], max_iter=300)
        return make_pipeline(for_linear(columns, train, settings["bins"]), model)

    def trees(settings: Mapping[str, Any]) -> Pipeline:
        return _trees(columns, train, settings)

    found = []
    for name, build, default, trials in (
        ("logistic regression", linear, {"C": 1.0, "bins": False}, _linear_trials()),
        ("boosted trees", trees, {}, _tree_trials()),
    ):
        found.append(_fitted(name, build, default, train, task, test))
        tuned = _best(build, trials, train, validation, task)
        found.append(_fitted(f"{name}, tuned", build, tuned, train, task, test))
    return found


def seconds_of_trees(columns: Columns, train: pd.DataFrame, tasks: Sequence[str]) -> float:
    """Fits boosted trees as they come to each task; returns the seconds that it takes."""
    seconds = 0.0
    for task in tasks:
        rows = train.loc[train[task].notna()]
        start = time.perf_counter()
        _fit(_trees(columns, rows, {}), rows, task)
        seconds += time.perf_counter() - start
    return seconds


def _trees(columns: Columns, rows: pd.DataFrame, settings: Mapping[str, Any]) -> Pipeline:
    encoder, few = for_trees(columns, rows)
    categories: Any = list(range(few)) or None
    model = HistGradientBoostingClassifier(
        categorical_features=categories, random_state=0, **settings
    )
    return make_pipeline(encoder, model)


def _linear_trials() -> list[dict[str, Any]]:
    return [{"C": c, "bins": bins} for c, bins in product((0.03, 0.1, 0.3, 1.0), (False, True))]


def _tree_trials() -> list[dict[str, Any]]:
    grid = list(product((0.03, 0.06, 0.1), (7, 15, 31, 63), (20, 100), (0.0, 5.0), (100, 300)))
    chosen = np.random.default_rng(0).choice(len(grid), _TRIALS, replace=False)
    names = ("learning_rate", "max_leaf_nodes", "min_samples_leaf", "l2_regularization", "max_iter")
    return [dict(zip(names, grid[i], strict=True)) for i in chosen]


def _best(
    build: Build,
    trials: list[dict[str, Any]],
    train: pd.DataFrame,
    validation: pd.DataFrame,
    task: str,
) -> dict[str, Any]:
    part = train.sample(min(len(train), _TUNED_ON), random_state=0)
    if len(validation[task].unique()) < 2:
        return trials[0]
    scores = []
    for settings in trials:
        scores_N = _fit(build(settings), part, task).predict_proba(validation)[:, 1]
        scores.append(roc_auc_score(validation[task], scores_N))
    return trials[int(np.argmax(scores))]


def _fitted(
    name: str,
    build: Build,
    settings: Mapping[str, Any],
    train: pd.DataFrame,
    task: str,
    test: pd.DataFrame,
) -> Rival:
    model = _fit(build(settings), train, task)
    return Rival(name, model.predict_proba(test)[:, 1].astype(np.float32), settings)


def _fit(model: Pipeline, rows: pd.DataFrame, task: str) -> Pipeline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # bins that are too narrow, unseen categories
        # TargetEncoder's random_state: from 1.9 on a generator takes its place, before none could
        warnings.simplefilter("ignore", FutureWarning)
        return model.fit(rows, rows[task].astype(int))
