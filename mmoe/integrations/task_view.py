"""One task of a ranker as scikit-learn's classifier or regressor: a single y in, a single y out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d

from mmoe.datasets.values.columns import to_numbers
from mmoe.integrations.estimator_config import (
    label_column,
    raw_config,
    task_called,
    with_label,
)
from mmoe.integrations.estimator_data import eval_pair
from mmoe.integrations.estimator_rows import Rows, feature_rows, label_rows, refuse_times
from mmoe.integrations.label_values import ZERO_ONE, as_y_had_it
from mmoe.metrics.task_kinds import kind_of

if TYPE_CHECKING:
    from mmoe.integrations.sklearn import MultiTaskRanker

_LEAST = 1e-12  # a probability is held this far from 0 and 1 where its logarithm is taken


class TaskView(BaseEstimator):
    """What a task's classifier and its regressor share.

    `MultiTaskRanker.task` makes one that is fitted as the ranker is. `fit` trains a ranker with the
    same parameters on X and a single y: with the other tasks, where their labels are given
    (`labels`) or are columns of X that the ranker's config names; else of this task alone.

    Args:
        ranker: Whose parameters `fit` trains with; None: `MultiTaskRanker()`.
        task: Name of the task, or its label's column; None: that of y, or label.

    Attributes:
        ranker_: The fitted ranker.
        task_: Name of its task.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, where X was no array.
    """

    def __init__(self, ranker: "MultiTaskRanker | None" = None, task: str | None = None) -> None:
        self.ranker = ranker
        self.task = task

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        labels: Any = None,
        eval_set: Any = None,
        callbacks: Any = None,
    ) -> Self:
        """Trains a ranker with the parameters of `ranker`; that one is left as it is.

        Args:
            X: As for `MultiTaskRanker.fit`.
            y: The task's label; missing ones are unobserved.
            sample_weight: As for `MultiTaskRanker.fit`.
            labels: DataFrame of the other tasks' labels, N rows: all tasks are then trained
                together. `cross_val_predict(…, params={"labels": labels})` cuts it as X.
            eval_set: As for `MultiTaskRanker.fit`.
            callbacks: Likewise.

        Returns:
            Itself.

        Raises:
            ValueError: X, y or the config cannot be used.
        """
        if y is None:
            raise ValueError(
                f"y: expected the label, got None: {type(self).__name__} requires y to be passed, "
                "but the target y is None"
            )
        features = feature_rows(X)
        own = _one_label(y, features)
        refuse_times(own)
        self._check(own.column(0))
        name = str(self.task or own.column_names[0])
        ranker = self._new_ranker()
        raw = raw_config(ranker.config)
        if raw is not None:
            name = task_called({task["name"]: task["label"] for task in raw["tasks"]}, name)
        column = name if raw is None else label_column(raw, name)
        together = own.rename_columns([column])
        if labels is not None:
            together = _together(label_rows(labels, features), together)
        if raw is not None:
            features = _without(features, column)
            there = {*features.table.column_names, *together.column_names}
            ranker.config = raw = with_label(raw, name, column, own.column(0), there)
        kept = together.column_names if raw is None else [task["name"] for task in raw["tasks"]]
        ranker.settings = _settings_of(kept, ranker.settings)
        ranker._fit(
            features,
            together,
            sample_weight,
            eval_set=_named(eval_set, column, features),
            callbacks=callbacks,
            regressions=self._regressions(name),
        )
        return self._take(ranker, _called(ranker, name))

    def _check(self, column: pa.ChunkedArray) -> None:
        """Refuses labels of another kind."""
        raise NotImplementedError

    def _regressions(self, name: str) -> list[str]:
        """The task's name where its label is a number."""
        return []

    def _new_ranker(self) -> "MultiTaskRanker":
        from mmoe.integrations.sklearn import MultiTaskRanker

        return (
            MultiTaskRanker() if self.ranker is None else cast(MultiTaskRanker, clone(self.ranker))
        )

    def _take(self, ranker: "MultiTaskRanker", task: str) -> Self:
        self.ranker_, self.task_ = ranker, task
        self.n_features_in_ = ranker.n_features_in_
        if hasattr(ranker, "feature_names_in_"):
            self.feature_names_in_ = ranker.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _predicted(self, X: Any) -> np.ndarray:
        """What the model says of each row, predictions_N."""
        check_is_fitted(self, "ranker_")
        return self.ranker_._predictions(X)[1][:, self._t]

    def _labels(self, predictions_N: np.ndarray) -> np.ndarray:
        ranker = self.ranker_
        return as_y_had_it(ranker.config_.tasks[self._t], predictions_N, ranker._stored.labels)

    @property
    def _t(self) -> int:
        return self.ranker_.task_names_.index(self.task_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


class TaskClassifier(ClassifierMixin, TaskView):
    """A binary task of a ranker as a classifier of two classes, which are those of y.

    Attributes:
        classes_: The two values of y, sorted.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from mmoe import MultiTaskRanker
        >>> rng = np.random.default_rng(0)
        >>> log = pd.DataFrame({"item": rng.integers(0, 9, 900), "hour": rng.integers(0, 24, 900)})
        >>> bought = np.where((log.item > 4) ^ (rng.random(900) < 0.2), "buy", "skip")
        >>> buys = MultiTaskRanker(epochs=2, seed=1).fit(log, bought).task()
        >>> buys.classes_.tolist(), buys.predict_proba(log).shape
        (['buy', 'skip'], (900, 2))
    """

    def predict(self, X: Any) -> np.ndarray:
        """Returns the class of each row, as y had it, [N]."""
        return self._labels(self._predicted(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns each row's probability of each class, in the order of `classes_`, [N, 2]."""
        p_N = self._predicted(X).astype(np.float64)
        pair = [1 - p_N, p_N] if self._positive == 1 else [p_N, 1 - p_N]
        return np.stack(pair, axis=1)

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the log odds of `classes_[1]`, [N]."""
        p_N2 = np.clip(self.predict_proba(X), _LEAST, 1)
        return np.log(p_N2[:, 1]) - np.log(p_N2[:, 0])

    def _check(self, column: pa.ChunkedArray) -> None:
        values = np.asarray(column.drop_null().to_pylist())
        check_classification_targets(values)
        found = np.unique(values)
        if len(found) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"{type_of_target(values)}: y has {len(found)} values; a task is one yes or no"
            )
        if len(found) < 2:
            raise ValueError(
                f"y: expected two classes, got one class only: {found[:1].tolist()} in every row"
            )

    def _take(self, ranker: "MultiTaskRanker", task: str) -> Self:
        values = ranker._stored.labels.get(task, ZERO_ONE)
        self.classes_, self._positive = values.classes, values.positive
        return super()._take(ranker, task)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class TaskRegressor(RegressorMixin, TaskView):
    """A regression task of a ranker as a regressor, in the units of y.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from mmoe import MultiTaskRanker
        >>> rng = np.random.default_rng(0)
        >>> log = pd.DataFrame({"item": rng.integers(0, 9, 900), "hour": rng.integers(0, 24, 900)})
        >>> stars = pd.Series(log.item / 2 + rng.random(900), name="stars")
        >>> MultiTaskRanker(epochs=2, seed=1).fit(log, stars).task().predict(log).shape
        (900,)
    """

    def predict(self, X: Any) -> np.ndarray:
        """Returns the number that is expected for each row, [N]."""
        return self._labels(self._predicted(X)).astype(np.float64)

    def _check(self, column: pa.ChunkedArray) -> None:
        table = pa.table({"y": column})
        try:
            to_numbers(table, "y", "y", "a regressor")
        except ValueError as error:
            raise ValueError(f"Input y is no number, or infinite: {error}") from None

    def _regressions(self, name: str) -> list[str]:
        return [name]


def view_of(ranker: "MultiTaskRanker", name: str | None) -> TaskClassifier | TaskRegressor:
    """Returns a task of a fitted ranker, which it goes on to share.

    Raises:
        ValueError: There is no such task, or none is named and there are several.
    """
    names = ranker.task_names_
    if name is None and len(names) == 1:
        name = names[0]
    called = name if name is None else _called(ranker, name)
    if called is None or called not in names:
        came = "none" if name is None else repr(name)
        raise ValueError(f"task: expected one of {', '.join(map(repr, names))}, got {came}")
    task = ranker.config_.tasks[names.index(called)]
    if task.outcomes is not None:
        raise ValueError(
            f"task {called!r}: is of kind {task.kind}, which has no view as an estimator of its "
            "own; use predict and predict_proba of the ranker, whose columns "
            f"pred_{called}_CLASS are probabilities"
        )
    made = TaskClassifier if kind_of(task.kind).is_event else TaskRegressor
    return made(ranker, name)._take(ranker, called)


def _called(ranker: "MultiTaskRanker", name: str) -> str:
    return task_called({task.name: task.label for task in ranker.config_.tasks}, name)


def _one_label(y: Any, features: Rows) -> pa.Table:
    """The label of one task, in the order of X."""
    if isinstance(y, np.ndarray | list) and np.ndim(y) == 2:
        y = column_or_1d(y, warn=True)
    table = label_rows(y, features)
    if table is None or table.num_columns != 1:
        came = "none" if table is None else f"{table.num_columns} columns"
        raise ValueError(
            f"y: expected the label of one task, got {came}; give those of the others as labels="
        )
    return table


def _together(others: pa.Table | None, own: pa.Table) -> pa.Table:
    """The other tasks' labels beside the own one, in the place that it has among them."""
    name = own.column_names[0]
    if others is None:
        return own
    if name not in others.column_names:
        return others.append_column(name, own[name])
    return others.set_column(others.column_names.index(name), name, own[name])


def _without(features: Rows, column: str) -> Rows:
    """X without a column, which y takes the place of."""
    if column not in features.table.column_names:
        return features
    return replace(features, table=features.table.drop_columns([column]))


def _settings_of(kept: Sequence[str], settings: Any) -> Any:
    """The settings, without those of tasks that are not trained."""
    if not isinstance(settings, Mapping):
        return settings
    return {key: value for key, value in settings.items() if not _is_of_others(key, value, kept)}


def _is_of_others(key: Any, value: Any, kept: Sequence[str]) -> bool:
    section, _, rest = str(key).partition(".")
    task = rest.partition(".")[0]
    if section == "tasks":
        return task not in kept and not task.isdigit()
    return key == "training.monitor" and str(value).partition(".")[0] not in ("mean", *kept)


def _named(eval_set: Any, column: str, features: Rows) -> Any:
    """The validation rows, the label in a column of this name; others are refused later."""
    pair = eval_pair(eval_set)
    if pair is None:
        return eval_set
    X, y = pair
    rows = feature_rows(X, names=features.table.column_names)
    labels = label_rows(y, rows)
    if labels is not None and labels.num_columns == 1:
        labels = labels.rename_columns([column])
    return [(_without(rows, column), labels)]
