"""Baselines that a model has to beat: logistic regression and boosted trees on the same rows."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from mmoe.config import NumericFeature, RunConfig, TaskConfig
from mmoe.datasets import EncodedLabels, FeatureEncoder, encode_labels
from mmoe.datasets.features.codec import Codec, LookedUp
from mmoe.datasets.features.numeric import NumericRule
from mmoe.datasets.features.trees import mean_labels
from mmoe.datasets.labels.maturity import Maturity
from mmoe.metrics import kind_of

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
    scalers = [
        NumericRule.fit(NumericFeature(name="x", log=codec.long_tailed), numbers_N)
        for codec, numbers_N in _numbers(encoder, train, origin)
    ]
    x_train, x_test = (_one_hot(encoder, scalers, table, origin) for table in (train, test))
    return _fit_tasks(config, (train, x_train), (test, x_test), origin, _linear_model, maturity)


def boosted_trees(
    config: RunConfig,
    train: pa.Table,
    test: pa.Table,
    *,
    validation: pa.Table | None = None,
    iterations: int = 150,
    seed: int = 0,
    origin: str = "data",
    maturity: Maturity | None = None,
) -> dict[str, BaselinePredictions]:
    """Fits boosted trees a task: LightGBM where it is installed, else scikit-learn's.

    Ids become their rank among the training ids (those of crosses by how often they were seen),
    and those of many values the mean label of their other training rows too; a list its length;
    numbers and parts of datetimes stay as they are. With `validation`, sizes of trees and the
    learning rate are chosen by its loss, and the number of trees by early stopping.

    Args:
        config: Features and tasks; model and training play no part.
        train: Rows to fit on.
        test: Rows to predict.
        validation: Rows to choose by; None: learning rate 0.1, 31 leaves, `iterations` trees.
        iterations: Trees, where nothing is chosen.
        seed: Of the bins' subsample and the folds of mean labels.
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
    x_train, many = _ordinal(encoder, train, origin)
    settings = _TreeSettings(iterations=iterations, seed=seed)
    x_test, held = _ordinal(encoder, test, origin)[0], None
    if validation is not None and validation.num_rows:
        labels = encode_labels(config, validation, origin, training=True, maturity=maturity)
        held = _ordinal(encoder, validation, origin)[0], labels

    def _trees(is_event: bool, t: int) -> Any:
        return _Trees(is_event, many, settings, _of_task(held, t))

    return _fit_tasks(config, (train, x_train), (test, x_test), origin, _trees, maturity)


@dataclass(frozen=True, kw_only=True)
class _TreeSettings:
    iterations: int
    seed: int
    learning_rate: float = 0.1
    leaves: int = 31
    rows_of_leaf: int = 20


_Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # x_NC, labels_N, weights_N
_FEW_IDS = 255  # as many bins as trees cut a column into: each id has its own
_FOLDS = 5  # of mean labels
_MOST_TREES, _PATIENCE = 1_000, 20
_TRIED_ON = 60_000  # rows that settings are chosen on
# As people tune them first: plain ones, small ones for noisy labels, larger and slower ones
_TRIALS: tuple[dict[str, Any], ...] = (
    {},
    {"leaves": 8, "rows_of_leaf": 50},
    {"learning_rate": 0.05, "leaves": 63, "rows_of_leaf": 50},
)


def _of_task(held: tuple[np.ndarray, EncodedLabels] | None, t: int) -> _Rows | None:
    """Validation rows whose label is observed."""
    if held is None:
        return None
    x_NC, labels = held
    rows = np.flatnonzero(labels.observed_NT[:, t])
    return x_NC[rows], labels.labels_NT[rows, t], labels.weights_NT[rows, t]


class _Trees:
    """Boosted trees of one task, with scikit-learn's methods.

    Args:
        is_event: Whether classes are predicted, or a value.
        many: Columns of ids that get their mean label beside them → ids are below.
        settings: Where nothing is chosen.
        held: Rows to choose by.
    """

    def __init__(
        self, is_event: bool, many: Mapping[int, int], settings: _TreeSettings, held: _Rows | None
    ) -> None:
        self.is_event, self.many, self.settings, self.held = is_event, many, settings, held

    def fit(self, x_NC: np.ndarray, labels_N: np.ndarray, sample_weight: np.ndarray) -> None:
        """Fits trees; with rows to choose by, of the settings that lose least on them."""
        settings = self.settings
        fold_N = np.random.default_rng(settings.seed).integers(_FOLDS, size=len(labels_N))
        of_others = np.zeros((len(labels_N), len(self.many)))
        for fold in range(_FOLDS):
            mine, other = fold_N == fold, fold_N != fold
            self._fit_means(x_NC[other], labels_N[other], sample_weight[other])
            of_others[mine] = self._means(x_NC[mine])
        self._fit_means(x_NC, labels_N, sample_weight)
        x_NC = np.concatenate([x_NC, of_others], axis=1)
        rows, held = (x_NC, labels_N, sample_weight), self._held(labels_N)
        if held is not None:
            some = slice(None)
            if len(labels_N) > _TRIED_ON:
                some = np.random.default_rng(settings.seed).permutation(len(labels_N))[:_TRIED_ON]
            tried = x_NC[some], labels_N[some], sample_weight[some]
            trials = [replace(settings, **trial) for trial in _TRIALS]
            fitted = [_fit_trees(self.is_event, tried, trial, held) for trial in trials]
            best = int(np.argmin([_loss(model, self.is_event, held) for model in fitted]))
            self.model, settings = fitted[best], trials[best]
            if len(labels_N) <= _TRIED_ON:
                return
        self.model = _fit_trees(self.is_event, rows, settings, held)

    def _fit_means(self, x_NC: np.ndarray, labels_N: np.ndarray, weights_N: np.ndarray) -> None:
        mean = float(np.average(labels_N, weights=weights_N))
        self.mean_labels = {}
        for column, size in self.many.items():
            known_N = np.isfinite(x_NC[:, column])
            ids_n = x_NC[known_N, column].astype(np.int64)
            self.mean_labels[column] = mean_labels(
                ids_n, labels_N[known_N], weights_N[known_N], size, mean
            )

    def _means(self, x_NC: np.ndarray) -> np.ndarray:
        """Mean label of each id of many values, float64 [N, columns]; NaN where it is unknown."""
        found = np.full((len(x_NC), len(self.many)), np.nan)
        for c, (column, means) in enumerate(self.mean_labels.items()):
            known_N = np.isfinite(x_NC[:, column])
            found[known_N, c] = means[x_NC[known_N, column].astype(np.int64)]
        return found

    def _with_means(self, x_NC: np.ndarray) -> np.ndarray:
        return np.concatenate([x_NC, self._means(x_NC)], axis=1)

    def _held(self, labels_N: np.ndarray) -> _Rows | None:
        """Rows to choose by, but for classes that no training row has; None: there are none."""
        if self.held is None:
            return None
        x_NC, held_N, weights_N = self.held
        rows = np.isin(held_N, labels_N) if self.is_event else np.ones(len(held_N), dtype=bool)
        if not rows.any():
            return None
        return self._with_means(x_NC[rows]), held_N[rows], weights_N[rows]

    @property
    def classes_(self) -> np.ndarray:
        """Labels, in the order of the probabilities."""
        return self.model.classes_

    def predict(self, x_NC: np.ndarray) -> np.ndarray:
        """Predicts values, [N]."""
        return self.model.predict(self._with_means(x_NC))

    def predict_proba(self, x_NC: np.ndarray) -> np.ndarray:
        """Predicts a probability of each class, [N, classes]."""
        return self.model.predict_proba(self._with_means(x_NC))


def _fit_trees(is_event: bool, rows: _Rows, given: _TreeSettings, held: _Rows | None) -> Any:
    """Fits LightGBM's trees where they are installed, else scikit-learn's."""
    x_NC, labels_N, weights_N = rows
    number = given.iterations if held is None else _MOST_TREES
    try:
        import lightgbm
    except (ImportError, OSError):  # OSError: without OpenMP's library
        build: Any = HistGradientBoostingClassifier if is_event else HistGradientBoostingRegressor
        model = build(
            learning_rate=given.learning_rate,
            max_iter=number,
            max_leaf_nodes=given.leaves,
            min_samples_leaf=given.rows_of_leaf,
            early_stopping=held is not None,
            n_iter_no_change=_PATIENCE,
            random_state=given.seed,
        )
        more = {}
        if held is not None:
            more = {"X_val": held[0], "y_val": held[1], "sample_weight_val": held[2]}
        return model.fit(x_NC, labels_N, sample_weight=weights_N, **more)
    build = lightgbm.LGBMClassifier if is_event else lightgbm.LGBMRegressor
    model = build(
        learning_rate=given.learning_rate,
        n_estimators=number,
        num_leaves=given.leaves,
        min_child_samples=given.rows_of_leaf,
        random_state=given.seed,
        deterministic=True,
        force_row_wise=True,
        verbosity=-1,
    )
    more = {}
    if held is not None:
        more = {
            "eval_X": held[0],
            "eval_y": held[1],
            "eval_sample_weight": [held[2]],
            "callbacks": [lightgbm.early_stopping(_PATIENCE, verbose=False)],
        }
    return model.fit(x_NC, labels_N, sample_weight=weights_N, **more)


def _loss(model: Any, is_event: bool, held: _Rows) -> float:
    x_NC, labels_N, weights_N = held
    if not is_event:
        return float(np.average((model.predict(x_NC) - labels_N) ** 2, weights=weights_N))
    probabilities_NK = model.predict_proba(x_NC)
    own_N = probabilities_NK[np.arange(len(labels_N)), np.searchsorted(model.classes_, labels_N)]
    return float(np.average(-np.log(np.maximum(own_N, 1e-15)), weights=weights_N))


def _as_scored(config: RunConfig) -> RunConfig:
    """Drops what scores do not read, such as the position: baselines are judged beside scores."""
    unread = config.unread_when_scoring
    features = [feature for feature in config.features if feature.name not in unread]
    return config.model_copy(update={"features": features}) if unread else config


def _linear_model(is_event: bool, _: int) -> Any:
    if is_event:
        return LogisticRegression(C=1.0, max_iter=_PASSES)
    return Ridge(alpha=1.0, solver="lsqr")


def _fit_tasks(
    config: RunConfig,
    train: tuple[pa.Table, Any],
    test: tuple[pa.Table, Any],
    origin: str,
    build: Callable[[bool, int], Any],
    maturity: Maturity | None,
) -> dict[str, BaselinePredictions]:
    """A model a task, on the rows where its label is observed."""
    train_labels = encode_labels(config, train[0], origin, training=True, maturity=maturity)
    test_labels = encode_labels(config, test[0], origin, maturity=maturity)
    results = {}
    for t, task in enumerate(config.tasks):
        rows = np.flatnonzero(train_labels.observed_NT[:, t])
        labels_N = train_labels.labels_NT[rows, t]
        model = build(kind_of(task.kind).is_event or task.levels is not None, t)
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


def _numbers(
    encoder: FeatureEncoder, table: pa.Table, origin: str
) -> list[tuple[Codec, np.ndarray]]:
    """Returns all columns that are numbers, float64 [N] each, with their features' codecs."""
    table = encoder.read(table, origin)
    return [
        (codec, numbers_N)
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
    scaled = [scaler.scale(numbers_N) for scaler, (_, numbers_N) in numbers]
    if scaled:
        blocks.append(sparse.csr_array(np.stack(scaled, axis=1).astype(np.float64)))
    return sparse.csr_array(sparse.hstack(blocks, format="csr"))


def _ordinal(
    encoder: FeatureEncoder, table: pa.Table, origin: str
) -> tuple[np.ndarray, dict[int, int]]:
    """Returns what trees see, and which columns are ids of many values: they are below."""
    columns, many = [], dict[int, int]()
    for c, one in enumerate(_looked_up(encoder, table, origin)):
        if one.is_list:
            columns.append(np.diff(one.offsets).astype(np.float32))
            continue
        if one.num_rows > _FEW_IDS:
            many[c] = one.num_rows
        columns.append(one.ids if one.rank is None else one.rank[one.ids])
    return np.stack([*columns, *(x for _, x in _numbers(encoder, table, origin))], axis=1), many
