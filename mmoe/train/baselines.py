"""What a model has to beat: logistic regression and gradient-boosted trees on the same rows."""

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

from mmoe.config import (
    CategoricalFeature,
    CrossFeature,
    DatetimeFeature,
    FeatureConfig,
    NumericFeature,
    RunConfig,
)
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.numeric import NumericRule
from mmoe.datasets.features.vocabulary import FIRST_KNOWN, IdMap, ManagedRule, Vocabulary
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.columns import to_numbers
from mmoe.metrics.kinds import kind_of

# A fit that needs more passes than this gains nothing in AUC (fourth decimal, Census-Income)
_PASSES = 200


@dataclass(frozen=True, kw_only=True)
class BaselinePredictions:
    """One task's predictions on the test rows.

    Attributes:
        predictions_N: float64, a probability or, for a regression task, a value; for every row.
        labels_N: float32, 0 where unobserved.
        observed_N: bool, the rows on which the label exists; metrics belong on these alone.
    """

    predictions_N: np.ndarray
    labels_N: np.ndarray
    observed_N: np.ndarray


def logistic_regression(
    config: RunConfig, train: pa.Table, test: pa.Table, *, origin: str = "data"
) -> dict[str, BaselinePredictions]:
    """Logistic regression on one-hot ids and standardised log1p numbers, a model for each task.

    L2 penalty with C = 1; ridge regression for regression tasks. A column that is a number is used
    as a number only, also where the config embeds it as well.

    Args:
        config: Features and tasks; model and training play no part.
        train: Rows to fit on; vocabularies and scaling come from them too.
        test: Rows to predict.
        origin: Starts error messages.

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
    encoder = FeatureEncoder.fit(config, train, origin)
    numbers = _scalers(config, train, origin)
    x_train, x_test = (_one_hot(config, encoder, numbers, table, origin) for table in (train, test))
    return _fit_tasks(config, (train, x_train), (test, x_test), origin, _linear_model)


def boosted_trees(
    config: RunConfig,
    train: pa.Table,
    test: pa.Table,
    *,
    iterations: int = 150,
    seed: int = 0,
    origin: str = "data",
) -> dict[str, BaselinePredictions]:
    """scikit-learn's HistGradientBoosting with learning rate 0.1, a model for each task.

    Ids become their rank among the training ids (those of crosses by how often they were seen), a
    list its length, numbers and parts of moments stay as they are.

    Args:
        config: Features and tasks; model and training play no part.
        train: Rows to fit on.
        test: Rows to predict.
        iterations: Trees; no early stopping, so all rows of `train` are learnt from.
        seed: Of the bins' subsample.
        origin: Starts error messages.

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
    encoder = FeatureEncoder.fit(config, train, origin)
    x_train, x_test = (_ordinal(config, encoder, table, origin) for table in (train, test))

    def _trees(is_event: bool) -> Any:
        model: Any = HistGradientBoostingClassifier if is_event else HistGradientBoostingRegressor
        return model(
            learning_rate=0.1, max_iter=iterations, early_stopping=False, random_state=seed
        )

    return _fit_tasks(config, (train, x_train), (test, x_test), origin, _trees)


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
) -> dict[str, BaselinePredictions]:
    """A model a task, on the rows where its label is observed."""
    train_labels = encode_labels(config, train[0], origin, training=True)
    test_labels = encode_labels(config, test[0], origin)
    results = {}
    for t, task in enumerate(config.tasks):
        rows = np.flatnonzero(train_labels.observed_NT[:, t])
        labels_N = train_labels.labels_NT[rows, t]
        is_event = kind_of(task.kind).is_event
        model = build(is_event)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # see _PASSES
            model.fit(train[1][rows], labels_N, sample_weight=train_labels.weights_NT[rows, t])
        x = test[1]
        predictions_N = model.predict_proba(x)[:, 1] if is_event else model.predict(x)
        results[task.name] = BaselinePredictions(
            predictions_N=np.asarray(predictions_N, dtype=np.float64),
            labels_N=test_labels.labels_NT[:, t],
            observed_N=test_labels.observed_NT[:, t],
        )
    return results


def _number_features(config: RunConfig) -> list[NumericFeature]:
    return [feature for feature in config.features if isinstance(feature, NumericFeature)]


def _numbers(table: pa.Table, feature: NumericFeature, origin: str) -> np.ndarray:
    return to_numbers(table, feature.source_column, origin, f"feature {feature.name!r}")


def _scalers(config: RunConfig, train: pa.Table, origin: str) -> dict[str, NumericRule]:
    return {
        feature.name: NumericRule.fit(
            NumericFeature.model_validate({"name": feature.name, "log": True}),
            _numbers(train, feature, origin),
        )
        for feature in _number_features(config)
    }


@dataclass(frozen=True, kw_only=True)
class _Ids:
    """One looked-up feature of N rows: single ids, lists, and parts of moments in one form.

    Attributes:
        ids: int32 [V].
        offsets: int64 [N + 1].
        num_rows: Ids are below.
        weights: float [V], 1 where the feature has none.
        rank: Number of each id in its key's order; None where ids have that order, or none.
        is_list: Has a row any number of ids?
    """

    ids: np.ndarray
    offsets: np.ndarray
    num_rows: int
    weights: np.ndarray
    rank: np.ndarray | None = None
    is_list: bool = False


def _ids(config: RunConfig, encoder: FeatureEncoder, encoded: EncodedFeatures) -> list[_Ids]:
    """All looked-up features, without the second life of a column that is a number already."""
    numbers = {feature.source_column for feature in _number_features(config)}
    chosen: dict[str, FeatureConfig] = {}
    for feature in config.features:
        if isinstance(feature, DatetimeFeature):
            chosen |= dict.fromkeys(feature.derived_names, feature)
        elif isinstance(feature, CrossFeature) or (
            isinstance(feature, CategoricalFeature) and feature.source_column not in numbers
        ):
            chosen[feature.name] = feature
    sizes = {table.name: table.num_rows for table in encoder.tables}
    found = {}
    for c, spec in enumerate(encoder.categorical):
        if spec.name in chosen:
            id_map = encoder.ids.get(spec.table)
            rank = None
            if isinstance(id_map, Vocabulary) and spec.table not in encoder.crosses:
                rank = _rank(id_map)
            found[spec.name] = _Ids(
                ids=_rows(encoded.ids_NC[:, c], id_map),
                offsets=np.arange(len(encoded) + 1),
                num_rows=sizes[spec.table],
                weights=np.ones(len(encoded)),
                rank=rank,
            )
    for position, spec in enumerate(encoder.lists):
        if spec.name in chosen:
            ids, offsets = encoded.lists[position]
            weights = encoded.list_weights[position] if spec.weighted else None
            found[spec.name] = _Ids(
                ids=_rows(ids, encoder.ids.get(spec.table)),
                offsets=offsets,
                num_rows=sizes[spec.table],
                weights=np.ones(len(ids)) if weights is None else weights.astype(np.float64),
                is_list=True,
            )
    return [found[name] for name in chosen]


def _rows(ids: np.ndarray, id_map: IdMap | None) -> np.ndarray:
    """Raw ids as rows of the table: by their remainder, since a baseline has no one to ask."""
    if not isinstance(id_map, ManagedRule):
        return ids
    return np.where(ids < FIRST_KNOWN, ids, FIRST_KNOWN + (ids - FIRST_KNOWN) % id_map.size)


def _one_hot(
    config: RunConfig,
    encoder: FeatureEncoder,
    scalers: dict[str, NumericRule],
    table: pa.Table,
    origin: str,
) -> sparse.csr_array:
    encoded = encoder.encode(table, origin)
    blocks = [
        sparse.csr_array((one.weights, one.ids, one.offsets), shape=(len(encoded), one.num_rows))
        for one in _ids(config, encoder, encoded)
    ]
    scaled = [scalers[f.name].scale(_numbers(table, f, origin)) for f in _number_features(config)]
    if scaled:
        blocks.append(sparse.csr_array(np.stack(scaled, axis=1).astype(np.float64)))
    return sparse.csr_array(sparse.hstack(blocks, format="csr"))


def _ordinal(
    config: RunConfig, encoder: FeatureEncoder, table: pa.Table, origin: str
) -> np.ndarray:
    encoded = encoder.encode(table, origin)
    columns = []
    for one in _ids(config, encoder, encoded):
        if one.is_list:
            columns.append(np.diff(one.offsets).astype(np.float32))
        else:
            columns.append(one.ids if one.rank is None else one.rank[one.ids])
    columns += [_numbers(table, feature, origin) for feature in _number_features(config)]
    return np.stack(columns, axis=1)


def _rank(vocabulary: Vocabulary) -> np.ndarray:
    """Id → its key's place in key order (numbers keep their order); NaN for missing and unseen."""
    rank = np.full(vocabulary.num_rows, np.nan)
    order = pc.array_sort_indices(vocabulary.keys).to_numpy()
    rank[FIRST_KNOWN + order] = np.arange(len(order))
    return rank
