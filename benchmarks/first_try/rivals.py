"""Models of a minute, with columns in the kinds that a careful person would give them."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

from benchmarks.first_try.judge import MEASURES, Metric
from benchmarks.first_try.logs import EITHER, ID, LIST, MOMENT, TIME, VECTOR, Kinds

# What a careful person would make of the columns, for scikit-learn's models

_FEW = 50  # values of an ordered column that are told apart
_NATIVE = 255  # categories that boosted trees take as such
_SENTINEL = -999.0
_HEAVY = 10.0  # 99th percentile over the median of what is positive


@dataclass(frozen=True)
class Columns:
    ids: list[str]
    ordered: list[str]  # few values in an order
    numbers: list[str]
    lists: list[str]
    vectors: list[str]
    moments: list[str]  # datetimes that say something

    @classmethod
    def of(cls, kinds: Mapping[str, Kinds], frame: pd.DataFrame) -> "Columns":
        found: dict[str, list[str]] = {field.name: [] for field in fields(cls)}
        for name, right in kinds.items():
            if right == TIME:
                continue
            if right == EITHER and _distinct(frame, name) <= _FEW:
                use = "ordered"
            elif right in (LIST, VECTOR, MOMENT):
                use = {LIST: "lists", VECTOR: "vectors", MOMENT: "moments"}[right]
            elif right == ID or frame[name].dtype.kind not in "if":
                use = "ids"
            else:
                use = "numbers"
            found[use].append(name)
        return cls(**found)


def frame_of(table: pa.Table, without: Sequence[str] = ()) -> pd.DataFrame:
    """Returns the rows as pandas has them, without some; a sensor's −999 is a missing value."""
    frame = table.drop_columns(list(without)).to_pandas()
    for name in frame.columns:
        if frame[name].dtype.kind == "f":
            frame[name] = frame[name].mask(frame[name] == _SENTINEL)
    return frame


def for_linear(columns: Columns, frame: pd.DataFrame, bins: bool) -> ColumnTransformer:
    """One-hot ids and ordered values, scaled numbers, with quantile bins where asked."""
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    heavy = [c for c in columns.numbers if _is_heavy(frame[c].to_numpy(dtype=float))]
    plain = [c for c in columns.numbers if c not in heavy]
    steps: list[tuple[str, Any, Any]] = [("ids", one_hot, columns.ids + columns.ordered)]
    steps.append(("plain", _scaled(), plain))
    steps.append(("heavy", make_pipeline(FunctionTransformer(_log), _scaled()), heavy))
    if bins:
        steps.append(("bins", _bins(), columns.numbers))
    steps += [(name, _bag(), name) for name in columns.lists]
    steps += [
        (name, make_pipeline(FunctionTransformer(_stack), StandardScaler()), [name])
        for name in columns.vectors
    ]
    if columns.moments:
        steps.append(("moments", _moments(), columns.moments))
    return ColumnTransformer(steps, sparse_threshold=1.0)


def for_trees(
    columns: Columns, frame: pd.DataFrame, metric: Metric, days: bool
) -> tuple[ColumnTransformer, int]:
    """Ids of few values as categories, others by their mean label; how many come first.

    `days` counts them as well, by which trees tell the latest rows apart: a level to go on from, or
    a season that is over.
    """
    few = [c for c in columns.ids if _distinct(frame, c) < _NATIVE]
    many = [c for c in columns.ids if c not in few]
    ordinal = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
    )
    seed: Any = 0
    target: Any = "binary" if metric == "auc" else "continuous"
    by_label = TargetEncoder(target_type=target, random_state=seed)
    steps: list[tuple[str, Any, Any]] = [
        ("few", ordinal, few),
        ("many", by_label, many),
        ("numbers", "passthrough", columns.ordered + columns.numbers),
    ]
    steps += [
        (name, make_pipeline(_bag(), FunctionTransformer(_dense, accept_sparse=True)), name)
        for name in columns.lists
    ]
    steps += [(name, FunctionTransformer(_stack), [name]) for name in columns.vectors]
    if columns.moments:
        calendar = FunctionTransformer(_calendar, kw_args={"days": days})
        steps.append(("moments", calendar, columns.moments))
    return ColumnTransformer(steps, sparse_threshold=0.0), len(few)


def _distinct(frame: pd.DataFrame, name: str) -> int:
    return len(frame[name].dropna().unique())


def _is_heavy(values_N: np.ndarray) -> bool:
    positive = values_N[values_N > 0]
    if not len(positive) or np.nanmin(values_N) < 0:
        return False
    return bool(np.quantile(positive, 0.99) > _HEAVY * np.median(positive))


def _scaled() -> Pipeline:
    return make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())


def _bins() -> Pipeline:
    cut = KBinsDiscretizer(
        20, strategy="quantile", subsample=50_000, random_state=0, quantile_method="linear"
    )
    return make_pipeline(SimpleImputer(strategy="median"), cut)


def _bag() -> CountVectorizer:
    # An analyzer of one's own leaves case and punctuation alone
    analyzer: Any = _items
    return CountVectorizer(analyzer=analyzer, binary=True, max_features=500)


def _items(text: str) -> list[str]:
    return text.replace("|", ",").split(",")


def _log(values: Any) -> Any:
    return np.log1p(values)


def _dense(values: Any) -> np.ndarray:
    return values.toarray() if sparse.issparse(values) else values


def _stack(column: pd.DataFrame) -> np.ndarray:
    return np.stack(list(column.iloc[:, 0]))


def _moments() -> Pipeline:
    """The hour, the weekday and the day of the year as ids; time as a number."""
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    kinds = ColumnTransformer([("ids", one_hot, [0, 1, 2]), ("numbers", StandardScaler(), [2, 3])])
    return make_pipeline(FunctionTransformer(_calendar), kinds)


def _calendar(column: pd.DataFrame, days: bool = True) -> np.ndarray:
    moments = pd.to_datetime(column.iloc[:, 0], utc=True).dt
    parts = [moments.hour, moments.dayofweek, moments.dayofyear]
    if days:
        parts.append((moments.tz_localize(None) - pd.Timestamp(0)) / pd.Timedelta(days=1))
    return np.stack(parts, axis=1)


# Simple models as they come and lightly tuned

_TRIALS = 8
_TUNED_ON = 60_000  # rows that a trial is fitted on

Settings = Mapping[str, Any]


class Contestant(NamedTuple):
    name: str
    build: Callable[[Settings], Pipeline]  # From the settings of a trial to an unfitted model
    default: Settings
    trials: Sequence[Settings]


@dataclass(frozen=True)
class Rival:
    """A model's predictions on the test rows."""

    name: str  # Of the model
    scores_N: np.ndarray  # Probabilities, or values
    settings: Settings  # What was chosen


def rivals(
    columns: Columns,
    parts: Mapping[str, pd.DataFrame],
    task: str,
    metric: Metric,
    test: pd.DataFrame,
) -> list[Rival]:
    """Fits all models, as they come and tuned on the validation rows, to one task."""
    train, validation = (
        part.loc[part[task].notna()] for part in (parts["train"], parts["validation"])
    )
    found = []
    for name, build, default, trials in _contestants(columns, train, task, metric):
        found.append(_fitted(name, build(default), default, train, task, test))
        if trials:
            tuned = _best(build, trials, train, validation, task, metric)
            found.append(_fitted(f"{name}, tuned", build(tuned), tuned, train, task, test))
    return found


def _contestants(
    columns: Columns, train: pd.DataFrame, task: str, metric: Metric
) -> list[Contestant]:
    def linear(model: Callable[[float], Any]) -> Callable[[Settings], Pipeline]:
        return lambda settings: make_pipeline(
            for_linear(columns, train, settings["bins"]), model(settings["strength"])
        )

    def trees(settings: Settings) -> Pipeline:
        return _trees(columns, train, metric, settings)

    tree_trials = _tree_trials()
    if columns.moments:
        tree_trials = [{**each, "days": i // 2 % 2 == 1} for i, each in enumerate(tree_trials)]
    if metric == "auc":
        logistic = linear(lambda c: LogisticRegression(C=c, max_iter=300))
        return [
            Contestant("logistic regression", logistic, _linear(1.0), _trials(0.03, 0.1, 0.3, 1.0)),
            Contestant("boosted trees", trees, {}, tree_trials),
        ]
    ridge = linear(lambda alpha: Ridge(alpha=alpha, solver="lsqr"))
    found = [
        Contestant("mean", lambda _: make_pipeline(DummyRegressor()), {}, []),
        Contestant("ridge", ridge, _linear(1.0), _trials(0.3, 3.0, 30.0)),
    ]
    labels_N = train[task].to_numpy(np.float64)
    if labels_N.min() >= 0 < labels_N.max():
        poisson = linear(lambda alpha: PoissonRegressor(alpha=alpha, max_iter=300))
        found.append(Contestant("Poisson", poisson, _linear(1e-3), _trials(1e-5, 1e-4, 1e-2)))
        # A product of effects, as amounts are, is a sum on this scale
        losses = ("squared_error", "poisson")
        tree_trials = [{**each, "loss": losses[i % 2]} for i, each in enumerate(tree_trials)]
    return [*found, Contestant("boosted trees", trees, {}, tree_trials)]


def seconds_of_trees(columns: Columns, train: pd.DataFrame, tasks: Mapping[str, Metric]) -> float:
    """Returns how long untuned boosted trees take, of all tasks."""
    seconds = 0.0
    for task, metric in tasks.items():
        rows = train.loc[train[task].notna()]
        start = time.perf_counter()
        _fit(_trees(columns, rows, metric, {}), rows, task)
        seconds += time.perf_counter() - start
    return seconds


def _trees(columns: Columns, rows: pd.DataFrame, metric: Metric, settings: Settings) -> Pipeline:
    settings = dict(settings)
    encoder, few = for_trees(columns, rows, metric, settings.pop("days", False))
    categories: Any = list(range(few)) or None
    kind: Any = HistGradientBoostingClassifier if metric == "auc" else HistGradientBoostingRegressor
    model = kind(categorical_features=categories, random_state=0, **settings)
    return make_pipeline(encoder, model)


def _linear(strength: float, bins: bool = False) -> dict[str, Any]:
    return {"strength": strength, "bins": bins}


def _trials(*strengths: float) -> list[dict[str, Any]]:
    return [_linear(strength, bins) for strength, bins in product(strengths, (False, True))]


def _tree_trials() -> list[dict[str, Any]]:
    grid = list(product((0.03, 0.06, 0.1), (7, 15, 31, 63), (20, 100), (0.0, 5.0), (100, 300)))
    chosen = np.random.default_rng(0).choice(len(grid), _TRIALS, replace=False)
    names = ("learning_rate", "max_leaf_nodes", "min_samples_leaf", "l2_regularization", "max_iter")
    return [dict(zip(names, grid[i], strict=True)) for i in chosen]


def _best(
    build: Callable[[Settings], Pipeline],
    trials: Sequence[Settings],
    train: pd.DataFrame,
    validation: pd.DataFrame,
    task: str,
    metric: Metric,
) -> Settings:
    part = train.sample(min(len(train), _TUNED_ON), random_state=0)
    if len(validation[task].unique()) < 2:
        return trials[0]
    labels_N, measure = validation[task].to_numpy(np.float64), MEASURES[metric]
    values = [
        measure(labels_N, _predicted(_fit(build(settings), part, task), validation))
        for settings in trials
    ]
    return trials[int(np.argmax(values))]


def _fitted(
    name: str,
    model: Pipeline,
    settings: Settings,
    train: pd.DataFrame,
    task: str,
    test: pd.DataFrame,
) -> Rival:
    return Rival(name, _predicted(_fit(model, train, task), test), settings)


def _predicted(model: Pipeline, rows: pd.DataFrame) -> np.ndarray:
    scores_N = model.predict_proba(rows)[:, 1] if is_classifier(model) else model.predict(rows)
    return scores_N.astype(np.float32)


def _fit(model: Pipeline, rows: pd.DataFrame, task: str) -> Pipeline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # bins that are too narrow, unseen categories
        # TargetEncoder's random_state: from 1.9 on a generator takes its place, before none could
        warnings.simplefilter("ignore", FutureWarning)
        return model.fit(rows, rows[task].astype(int if is_classifier(model) else float))
