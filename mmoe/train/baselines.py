"""Baselines that a model has to beat: logistic regression and boosted trees on the same rows."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from mmoe.config import NumericFeature, RunConfig, TaskConfig
from mmoe.datasets import FeatureEncoder, encode_labels
from mmoe.datasets.features.codec import LookedUp
from mmoe.datasets.features.numeric import NumericRule
from mmoe.datasets.labels.maturity import Maturity
from mmoe.metrics.task_kinds import kind_of

# A fit that needs more passes than this gains nothing in AUC (fourth decimal, Census-Income)
_PASSES = 200


@dataclass(frozen=True, kw_only=True)
class BaselinePredictions:
    """Predictions of a baseline for one task on the test rows.

    Attributes:
        predictions_N: float64, a probability or, for a regression task, a value; for every row.
        labels_N: float32, 0 where unobserved.
        observed_N: bool, the rows on which the label exists; metrics belong on these alone.
        parameters: Weights of the model that was fitted; None: it has none (trees).
        further_NK: What the task's kind predicts beside it; a column for each of `task.further`.
    """

    predictions_N: np.ndarray
    labels_N: np.ndarray
    observed_N: np.ndarray
    further_NK: np.ndarray
    parameters: int | None = None


def logistic_regression(
    config: RunConfig,
    train: pa.Table,
    test: pa.Table,
    *,
    origin: str = "data",
    maturity: Maturity | None = None,
) -> dict[str, BaselinePredictions]:
    """Fits logistic regression a task, on one-hot ids and scaled log1p numbers (vectors: as is).

    L2 penalty with C = 1; ridge regression for regression tasks. A column that is a number is used
    as a number only, also where the config embeds it as well.

    Args:
        config: Features and tasks; model and training play no part.
        train: Rows to fit on; vocabularies and scaling come from them too.
        test: Rows to predict.
        origin: Starts error messages.
        maturity: As for `encode_labels`; young rows count nowhere.

    Returns:
        Task name → predictions on `test`.

    Raises:
        ValueError: A column is missing or does not fit its feature, or a label has one class only.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "categorical", "name": "item"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> log = pa.table({"item": ["a", "a", "b", "b"], "click": [1, 1, 0, 0]})
        >>> predictions_N = logistic_regression(config, log, log)["click"].predictions_N
        >>> bool(predictions_N[0] > 0.5 > predictions_N[3])
        True
    """
    encoder = FeatureEncoder.fit(_as_scored(config), train, origin, maturity)
    scalers = _scalers(encoder, train, origin)
    x_train, x_test = (_one_hot(encoder, scalers, table, origin) for table in (train, test))
    return _fit_tasks(config, (train, x_train), (test, x_test), origin, _linear_model, maturity)


def boosted_trees(
    config: RunConfig,
    train: pa.Table,
    test: pa.Table,
    *,
    iterations: int = 150,
    seed: int = 0,
    origin: str = "data",
    maturity: Maturity | None = None,
) -> dict[str, BaselinePredictions]:
    """Fits scikit-learn's HistGradientBoosting with learning rate 0.1, one a task.

    Ids become their rank among the training ids (those of crosses by how often they were seen), a
    list its length, numbers and parts of datetimes stay as they are.

    Args:
        config: Features and tasks; model and training play no part.
        train: Rows to fit on.
        test: Rows to predict.
        iterations: Trees; no early stopping, so all rows of `train` are learnt from.
        seed: Of the bins' subsample.
        origin: Starts error messages.
        maturity: As for `encode_labels`; young rows count nowhere.

    Returns:
        Task name → predictions on `test`.

    Raises:
        ValueError: A column is missing or does not fit its feature, or a label has one class only.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> log = pa.table({"age": list(range(100)), "click": [0] * 50 + [1] * 50})
        >>> predictions_N = boosted_trees(config, log, log)["click"].predictions_N
        >>> bool(predictions_N[10] < 0.5 < predictions_N[90])
        True
    """
    encoder = FeatureEncoder.fit(_as_scored(config), train, origin, maturity)
    x_train, x_test = (_ordinal(encoder, table, origin) for table in (train, test))

    def _trees(is_event: bool) -> Any:
        model: Any = HistGradientBoostingClassifier if is_event else HistGradientBoostingRegressor
        return model(
            learning_rate=0.1, max_iter=iterations, early_stopping=False, random_state=seed
        )

    return _fit_tasks(config, (train, x_train), (test, x_test), origin, _trees, maturity)


def _as_scored(config: RunConfig) -> RunConfig:
    """Drops what scores do not read, such as the position: baselines are judged beside scores."""
    unread = config.unread_when_scoring
    features = [feature for feature in config.features if feature.name not in unread]
    return config.model_copy(update={"features": features}) if unread else config


def _linear_model(is_event: bool) -> Any:
    if is_event:
        return LogisticRegression(C=1.0, max_iter=_PASSES)
    return Ridge(alpha=1.0, solver="lsqr")


def _fit_tasks(
    config: RunConfig,
    train: tuple[pa.Table, Any],
    test: tuple[pa.Table, Any],
    origin: str,
    build: Callable[[bool], Any],
    maturity: Maturity | None,
) -> dict[str, BaselinePredictions]:
    """A model a task, on the rows where its label is observed."""
    train_labels = encode_labels(config, train[0], origin, training=True, maturity=maturity)
    test_labels = encode_labels(config, test[0], origin, maturity=maturity)
    results = {}
    for t, task in enumerate(config.tasks):
        rows = np.flatnonzero(train_labels.observed_NT[:, t])
        labels_N = train_labels.labels_NT[rows, t]
        model = build(kind_of(task.kind).is_event or task.levels is not None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # see _PASSES
            model.fit(train[1][rows], labels_N, sample_weight=train_labels.weights_NT[rows, t])
        x = test[1]
        predictions_N, further_NK = _predicted(model, x, task)
        results[task.name] = BaselinePredictions(
            predictions_N=np.asarray(predictions_N, dtype=np.float64),
            further_NK=further_NK,
            labels_N=test_labels.labels_NT[:, t],
            observed_N=test_labels.observed_NT[:, t],
            parameters=np.size(model.coef_) + 1 if hasattr(model, "coef_") else None,
        )
    return results


def _predicted(model: Any, x: Any, task: TaskConfig) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of the task's kind: its one number, and a probability of each level."""
    if task.levels is None:
        event = kind_of(task.kind).is_event
        predictions_N = model.predict_proba(x)[:, 1] if event else model.predict(x)
        # What a value's kind predicts beside it, a simple model has not, and no metric reads
        return predictions_N, np.zeros((len(predictions_N), len(task.further)))
    further_NK = np.zeros((x.shape[0], len(task.levels)))
    columns = np.searchsorted(task.levels, model.classes_)  # those that training rows have
    further_NK[:, columns] = model.predict_proba(x)
    return kind_of(task.kind).of_probabilities(further_NK, task.levels), further_NK


def _numbers(encoder: FeatureEncoder, table: pa.Table, origin: str) -> list[np.ndarray]:
    """Returns all columns that are numbers, float64 [N] each."""
    table = encoder.read(table, origin)
    return [
        numbers_N
        for codec in encoder.codecs
        for numbers_N in codec.number_inputs(table, encoder.rules, origin)
    ]


def _scalers(encoder: FeatureEncoder, table: pa.Table, origin: str) -> list[NumericRule]:
    return [
        NumericRule.fit(NumericFeature(name="x", log=codec.long_tailed), numbers_N)
        for codec in encoder.codecs
        for numbers_N in codec.number_inputs(table, encoder.rules, origin)
    ]


def _looked_up(encoder: FeatureEncoder, table: pa.Table, origin: str) -> list[LookedUp]:
    """Returns all looked-up features, without columns that are numbers already."""
    numbers = {column for codec in encoder.codecs for column in codec.number_columns}
    table = encoder.read(table, origin)
    return [
        one
        for codec in encoder.codecs
        for one in codec.looked_up(table, encoder.rules, origin, numbers)
    ]


def _one_hot(
    encoder: FeatureEncoder, scalers: list[NumericRule], table: pa.Table, origin: str
) -> sparse.csr_array:
    blocks = [
        sparse.csr_array((one.weights, one.ids, one.offsets), shape=(table.num_rows, one.num_rows))
        for one in _looked_up(encoder, table, origin)
    ]
    numbers = zip(scalers, _numbers(encoder, table, origin), strict=True)
    scaled = [scaler.scale(numbers_N) for scaler, numbers_N in numbers]
    if scaled:
        blocks.append(sparse.csr_array(np.stack(scaled, axis=1).astype(np.float64)))
    return sparse.csr_array(sparse.hstack(blocks, format="csr"))


def _ordinal(encoder: FeatureEncoder, table: pa.Table, origin: str) -> np.ndarray:
    columns = []
    for one in _looked_up(encoder, table, origin):
        if one.is_list:
            columns.append(np.diff(one.offsets).astype(np.float32))
        else:
            columns.append(one.ids if one.rank is None else one.rank[one.ids])
    return np.stack([*columns, *_numbers(encoder, table, origin)], axis=1)
