"""`MultiTaskRanker`: a run as a scikit-learn estimator."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_regressor
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d

from mmoe.config import RunConfig
from mmoe.datasets.values.columns import to_numbers
from mmoe.explain import ExplainSettings
from mmoe.integrations.estimator_config import (
    as_parameters,
    config_for,
    label_column,
    raw_config,
    split_parameters,
    task_called,
    with_label,
)
from mmoe.integrations.estimator_fitted import (
    ZERO_ONE,
    Explanation,
    FittedModel,
    RunPicturesMixin,
    StoredFit,
    label_values,
    pack_files,
    unpack_files,
)
from mmoe.integrations.estimator_rows import (
    Callback,
    Rows,
    eval_pair,
    feature_rows,
    joined,
    label_rows,
    one_callback,
    refuse_times,
    training_rows,
    validation_rows,
    weight_column,
)
from mmoe.metrics import first_of, kind_of
from mmoe.run import ConsoleReporter, SilentReporter, open_run
from mmoe.train import train_run
from mmoe.train.evaluate import split_metrics


class MultiTaskRanker(RunPicturesMixin, BaseEstimator):
    """One model for all the labels of a DataFrame, over the same config and code as `mmoe train`.

    `fit` infers features from the columns as `mmoe init` does, or takes a config. A share of the
    rows, or `eval_set`, chooses the best epoch; metrics of the run are computed on those rows,
    since test rows stay with the caller. `task("click")` is one label's classifier or regressor,
    for what of scikit-learn takes a single y.

    Args:
        config: A RunConfig, a mapping or a YAML file; None infers one from the data.
        model: mmoe, shared_bottom, single_task, omoe, cgc, ple or esmm. None, here and below:
            what the config says.
        num_experts: Experts in the pool.
        epochs: At most so many passes over the rows.
        batch_size: Rows a step.
        learning_rate: Of the dense part.
        seed: Of weights, batch order, dropout.
        settings: Any other config values, `{"model.gate.kind": "top_k"}`. As parameters they are
            called `model__gate__kind`, in `set_params` and in searches.
        validation: Share of the rows that chooses the best epoch.
        run_dir: Where the run directory is made (with -2, -3, … where it exists already); None: a
            temporary folder (see `save`).
        verbose: Show progress.

    Attributes:
        run_directory_: Path of the run; the command line understands it.
        config_: The RunConfig that was trained.
        metrics_: What metrics.json holds.
        task_names_: The tasks.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, where X was no array.

    Raises:
        ValueError: From `fit`, where config or data cannot be used.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from mmoe import MultiTaskRanker
        >>> rng = np.random.default_rng(0)
        >>> log = pd.DataFrame({"item": rng.integers(0, 9, 900), "hour": rng.integers(0, 24, 900)})
        >>> luck = rng.random((900, 2)) < 0.2
        >>> labels = pd.DataFrame({"click": log.item > 4, "buy": log.hour > 11}) ^ luck
        >>> ranker = MultiTaskRanker(epochs=2, seed=1).fit(log, labels)
        >>> list(ranker.predict_proba(log).columns)
        ['pred_click', 'pred_buy']
        >>> ranker.task("click").classes_
        array([False,  True])
    """

    # Columns of y that are no classes, however few values they have
    _regressions: Sequence[str] = ()

    def __init__(
        self,
        *,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        model: str | None = None,
        num_experts: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int | None = None,
        settings: Mapping[str, Any] | None = None,
        validation: float = 0.1,
        run_dir: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.config = config
        self.model = model
        self.num_experts = num_experts
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.seed = seed
        self.settings = settings
        self.validation = validation
        self.run_dir = run_dir
        self.verbose = verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the parameters; with `deep` those of `settings` too, as `model__gate__kind`."""
        own = super().get_params(deep=deep)
        return {**own, **as_parameters(self.settings)} if deep else own

    def set_params(self, **params: Any) -> "MultiTaskRanker":
        """Sets parameters; `model__gate__kind="top_k"` is kept as `settings["model.gate.kind"]`.

        Raises:
            ValueError: There is no such parameter, nor such a section of the config.
        """
        own, keys = split_parameters(params)
        super().set_params(**own)
        if keys:
            self.settings = {**(self.settings or {}), **keys}
        return self

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        eval_set: tuple[Any, Any] | Sequence[tuple[Any, Any]] | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
    ) -> "MultiTaskRanker":
        """Trains on X and y, and keeps the best epoch's weights.

        Args:
            X: N rows of feature columns: a DataFrame of pandas or polars, an Arrow table, a list of
                dicts, or an array. With a config also the label columns, where `y` is None.
            y: One column per label, in any such form; a missing value is an unobserved label. Rows
                are matched with those of X by their index, where both are of pandas.
            sample_weight: N numbers of 0 or more, of rows in every task's loss and metrics. A
                batch's loss is divided by their sum, so only their ratios count.
            eval_set: `(X, y)`, or `[(X, y)]`: rows to choose the best epoch by, not a share of X.
            callbacks: Each is called after every epoch with its number, from 1, and what
                history.json holds of it (loss, validation, monitor, best); where one returns True,
                that epoch was the last.

        Returns:
            Itself.

        Raises:
            ValueError: X, y or the config cannot be used; the message names the column.
        """
        features = feature_rows(X)
        labels = label_rows(y, features)
        if len(features) < 2:
            raise ValueError("X: expected at least 2 rows to train on, got 1 sample")
        table = joined(features, labels)
        weights = weight_column(sample_weight, features)
        validation = validation_rows(eval_set, features.table.column_names)
        on_epoch = one_callback(callbacks)
        features.warn_of_mixed()
        config = config_for(self, table, labels, self._regressions)
        config, splits, before = training_rows(config, table, validation, weights, self.validation)
        # scikit-learn fits an estimator and its clones again and again: each fit gets a folder
        folder = self._temporary_folder() if self.run_dir is None else Path(self.run_dir)
        finished = train_run(
            config,
            folder,
            splits=splits,
            reporter=ConsoleReporter() if self.verbose else SilentReporter(),
            numbered=self.run_dir is not None,
            on_epoch=on_epoch,
        )
        stored = StoredFit(
            labels=label_values(config, table),
            columns=features.table.column_names,
            named=features.named,
            mixed=list(features.mixed),
            weights_before=before,
        )
        stored.write(finished.directory.path)
        self._take(finished.directory.path, config, finished.metrics, stored)
        return self

    def predict_proba(self, X: Any) -> pd.DataFrame:
        """Returns one column `pred_<task>` a task: probabilities, or values for regression.

        Tasks that predict more have further columns behind these, `pred_<task>_<class>`.
        """
        return self._fitted().named(X)

    def predict(self, X: Any) -> pd.DataFrame:
        """Returns labels as y had them: one of a binary task's two values, or a number.

        The value whose probability is at least 0.5, the likeliest class; numbers in units of y.
        """
        return self._fitted().labels(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Returns the mean AUC of the binary tasks (1 = perfect); without any, minus the mean RMSE.

        Args:
            X: As for `fit`.
            y: Likewise.
            sample_weight: Likewise.

        Raises:
            ValueError: No task's metric can be computed on these rows.
        """
        fitted = self._fitted()
        config, rows = fitted.judged(X, y, sample_weight)
        metrics, notes = split_metrics(config, fitted.loaded().predictor, rows)
        kind = first_of(task.kind for task in config.tasks)
        values = [values.get(kind.headline) for values in metrics.values()]
        known = [value for value in values if value is not None]
        if not known:
            raise ValueError(f"y: no metric can be computed on these rows: {'; '.join(notes)}")
        mean = float(np.mean(known))
        return mean if kind.monitored[kind.headline] else -mean

    @property
    def classes_(self) -> NoReturn:
        """Says where classes are: a task has them, which `task` gives as a classifier.

        Raises:
            AttributeError: Always; scikit-learn asks those for it that are to be one classifier.
        """
        tasks = self.config_.tasks if hasattr(self, "config_") else []
        events = [repr(task.name) for task in tasks if kind_of(task.kind).is_event]
        views = " or ".join(f"ranker.task({name})" for name in events or ["NAME"])
        raise AttributeError(
            "MultiTaskRanker has no classes_: it predicts all labels side by side; where one "
            f"classifier is needed give a task of a fitted ranker, {views}"
        )

    def explain(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        tolerance: float = 0.0002,
        gradients: bool = False,
        features: bool = False,
    ) -> Explanation:
        """Returns what each expert is worth to each task, as `mmoe explain` measures it.

        Args:
            X: As for `score`.
            y: Likewise.
            sample_weight: Likewise.
            tolerance: How much worse AUC or NE may become before an expert counts as needed.
            gradients: Also how the tasks' gradients agree.
            features: Also what each task loses without each feature.
        """
        asked = ExplainSettings(tolerance=tolerance, gradients=gradients, features=features)
        return self._fitted().explained(X, y, sample_weight, asked)

    def task(self, name: str | None = None) -> "TaskClassifier | TaskRegressor":
        """Returns one task as scikit-learn's classifier or regressor, fitted as this is.

        Args:
            name: Of the task, or of its label's column, as y had it; None: the only one.

        Raises:
            ValueError: There is no such task, or none is named and there are several.
        """
        check_is_fitted(self, "run_directory_")
        names = self.task_names_
        if name is None and len(names) == 1:
            name = names[0]
        called = name if name is None else _called(self, name)
        if called is None or called not in names:
            came = "none" if name is None else repr(name)
            raise ValueError(f"task: expected one of {', '.join(map(repr, names))}, got {came}")
        task = self.config_.tasks[names.index(called)]
        if task.outcomes is not None:
            raise ValueError(
                f"task {called!r}: is of kind {task.kind}, which has no view as an estimator of "
                "its own; use predict and predict_proba of the ranker, whose columns "
                f"pred_{called}_CLASS are probabilities"
            )
        made = TaskClassifier if kind_of(task.kind).is_event else TaskRegressor
        return made(self, name)._take(self, called)

    def save(self, path: str | Path) -> Path:
        """Copies the run directory to `path`, which must not exist.

        Returns:
            The path, which `mmoe evaluate`, `score` and `report` understand.

        Raises:
            ValueError: There is something at `path`.
        """
        check_is_fitted(self, "run_directory_")
        if Path(path).exists():
            raise ValueError(f"{path}: exists already; choose another folder")
        shutil.copytree(self.run_directory_, path)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "MultiTaskRanker":
        """Loads an estimator from a run directory, its own or one of `mmoe train`."""
        run = open_run(path)
        ranker = cls(config=str(run.config_file))
        ranker._take(run.path, run.config(), run.metrics(), StoredFit.read(run))
        return ranker

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        tags.target_tags.required = self.config is None
        tags.target_tags.multi_output = True
        return tags

    def _take(
        self, folder: Path, config: RunConfig, metrics: dict[str, Any], stored: StoredFit
    ) -> None:
        self.run_directory_ = folder
        self.config_ = config
        self.metrics_ = metrics
        self.task_names_ = [task.name for task in config.tasks]
        self._stored = stored
        self._model = FittedModel(folder, config, stored)
        _take_columns(self, stored)

    def _fitted(self) -> FittedModel:
        check_is_fitted(self, "run_directory_")
        return self._model

    def _temporary_folder(self) -> Path:
        folder = tempfile.mkdtemp(prefix="mmoe-")
        # Removed with the estimator; `save` keeps a copy
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def __getstate__(self) -> dict[str, Any]:
        """Keeps the files of the run, which may be in a temporary folder, without the model."""
        state = dict(cast(dict[str, Any], super().__getstate__()))
        state.pop("_model", None)
        if "run_directory_" in state:
            state["_files"] = pack_files(Path(state["run_directory_"]))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpacks the run into a folder of its own."""
        state = dict(state)
        files: dict[str, bytes] | None = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self.run_directory_ = self._temporary_folder()
            unpack_files(files, self.run_directory_)
            self._model = FittedModel(self.run_directory_, self.config_, self._stored)


def _take_columns(estimator: Any, stored: StoredFit) -> None:
    """Says of an estimator which columns of X it was fitted to."""
    estimator.n_features_in_ = len(stored.columns)
    if stored.named:
        estimator.feature_names_in_ = np.asarray(stored.columns, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


_LEAST = 1e-12  # a probability is held this far from 0 and 1 where its logarithm is taken


class TaskView(BaseEstimator):
    """Base of a task's classifier and regressor.

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
        ranker = cast(MultiTaskRanker, clone(self.ranker or MultiTaskRanker()))
        raw = raw_config(ranker.config)
        if raw is not None:
            name = task_called({task["name"]: task["label"] for task in raw["tasks"]}, name)
        column = name if raw is None else label_column(raw, name)
        together = _together(label_rows(labels, features), own.rename_columns([column]))
        if raw is not None:
            features = _without(features, column)
            there = {*features.table.column_names, *together.column_names}
            ranker.config = raw = with_label(raw, name, column, own.column(0), there)
        kept = together.column_names if raw is None else [t["name"] for t in raw["tasks"]]
        if isinstance(ranker.settings, Mapping):
            ranker.settings = {k: v for k, v in ranker.settings.items() if _is_of(kept, k, v)}
        ranker._regressions = [name] if is_regressor(self) else []
        validation = _named(eval_set, column, features)
        ranker.fit(features, together, sample_weight, eval_set=validation, callbacks=callbacks)
        return self._take(ranker, _called(ranker, name))

    def _check(self, column: pa.ChunkedArray) -> None:
        """Refuses labels of another kind."""
        raise NotImplementedError

    def _take(self, ranker: "MultiTaskRanker", task: str) -> Self:
        self.ranker_, self.task_ = ranker, task
        _take_columns(self, ranker._stored)
        return self

    def _predicted(self, X: Any) -> np.ndarray:
        """Predicts each row, predictions_N."""
        check_is_fitted(self, "ranker_")
        return self.ranker_._fitted().predictions(X)[1][:, self._t]

    def _labels(self, X: Any) -> np.ndarray:
        """What y would have held."""
        predictions_N = self._predicted(X)
        return self.ranker_._fitted().label(self._t, predictions_N)

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
        return self._labels(X)

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
        return self._labels(X).astype(np.float64)

    def _check(self, column: pa.ChunkedArray) -> None:
        table = pa.table({"y": column})
        try:
            to_numbers(table, "y", "y", "a regressor")
        except ValueError as error:
            raise ValueError(f"Input y is no number, or infinite: {error}") from None


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


def _is_of(kept: Sequence[str], key: Any, value: Any) -> bool:
    """Whether a setting is not that of tasks which are not trained."""
    section, task = (*str(key).split("."), "")[:2]
    if section == "tasks":
        return task in kept or task.isdigit()
    return key != "training.monitor" or str(value).partition(".")[0] in ("mean", *kept)


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
