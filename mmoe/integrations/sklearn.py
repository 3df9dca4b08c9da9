"""`MultiTaskRanker`: a run as a scikit-learn estimator."""

import json
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from mmoe.config import RunConfig, config_from_dict, load_config, set_values
from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.frames import arrow_column
from mmoe.datasets.rows.locations import number_rows
from mmoe.datasets.rows.splits import Splits
from mmoe.metrics.task_kinds import first_of, kind_of
from mmoe.run import RunDirectory
from mmoe.run.console import ConsoleReporter, SilentReporter
from mmoe.score import Predictor, load_predictor
from mmoe.train import train_run
from mmoe.train.evaluate import split_metrics

# Named parameters, so that GridSearchCV can vary them, and the config keys they set.
_SETTINGS = {
    "model": "model.kind",
    "num_experts": "model.num_experts",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "learning_rate": "training.optimizer.learning_rate",
    "seed": "seed",
}


class MultiTaskRanker(BaseEstimator):
    """One model for all the labels of a DataFrame, over the same config and code as `mmoe train`.

    `fit` infers features from the columns as `mmoe init` does, or takes a config. A share of the
    rows is held out to choose the best epoch; metrics of the run are computed on those rows, since
    test rows stay with the caller.

    Args:
        config: A RunConfig, a mapping or a YAML file; None infers one from the data.
        model: mmoe, shared_bottom, single_task, omoe, cgc, ple or esmm. None, here and below:
            what the config says.
        num_experts: Experts in the pool.
        epochs: At most so many passes over the rows.
        batch_size: Rows a step.
        learning_rate: Of the dense part.
        seed: Of weights, batch order, dropout.
        settings: Any other config values, `{"model.gate.kind": "top_k"}`.
        validation: Share of the rows that chooses the best epoch.
        run_dir: Where the run directory is made (with -2, -3, … where it exists already); None: a
            temporary folder (see `save`).
        verbose: Show progress.

    Attributes:
        run_directory_: Path of the run; the command line understands it.
        config_: The RunConfig that was trained.
        metrics_: What metrics.json holds.
        task_names_: The tasks.

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
    """

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

    def fit(
        self, X: pd.DataFrame, y: pd.DataFrame | pd.Series | np.ndarray | None = None
    ) -> "MultiTaskRanker":
        """Trains on X and y, and keeps the best epoch's weights.

        Args:
            X: Feature columns. With a config also the label columns, where `y` is None.
            y: One column per label; a missing value is an unobserved label.

        Returns:
            Itself.

        Raises:
            ValueError: X, y or the config cannot be used; the message names the column.
        """
        features, labels = _features_frame(X), _labels_frame(y, len(X))
        table = _to_table(features, labels)
        config = self._config(table, [] if labels is None else list(labels.columns))
        table = number_rows(
            table, [("X", table.num_rows)]
        )  # rows are shuffled before they are checked
        train, validation = _hold_out(table, self.validation, config.split_seed)
        splits = Splits(train=train, validation=validation, test=validation, origin="X")
        # scikit-learn fits an estimator and its clones again and again: each fit gets a folder
        folder = self._temporary_folder() if self.run_dir is None else Path(self.run_dir)
        reporter = ConsoleReporter() if self.verbose else SilentReporter()
        finished = train_run(
            config, folder, splits=splits, reporter=reporter, numbered=self.run_dir is not None
        )
        self._take(finished.directory.path, config, finished.metrics)
        self.n_features_in_ = features.shape[1]
        self.feature_names_in_ = np.asarray(features.columns, dtype=object)
        return self

    def predict_proba(self, X: pd.DataFrame) -> pd.DataFrame:
        """Predictions, one column `pred_<task>` a task: probabilities, or values for regression."""
        check_is_fitted(self, "run_directory_")
        features = _features_frame(X)
        predictor, encoder, _ = self._loaded()
        rows = BatchSource.of_table(_to_table(features, None), encoder, "X")
        columns = [f"pred_{name}" for name in self.task_names_]
        return pd.DataFrame(predictor.predict(rows), columns=columns, index=features.index)

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Returns labels: 1 where the probability is at least 0.5; values for regression tasks."""
        predictions = self.predict_proba(X)
        return pd.DataFrame(
            {
                task.name: kind_of(task.kind).decide(predictions[f"pred_{task.name}"])
                for task in self.config_.tasks
            }
        )

    def score(
        self, X: pd.DataFrame, y: pd.DataFrame | pd.Series | np.ndarray | None = None
    ) -> float:
        """Returns the mean AUC of the binary tasks (1 = perfect); without any, minus the mean RMSE.

        Raises:
            ValueError: No task's metric can be computed on these rows.
        """
        check_is_fitted(self, "run_directory_")
        features, labels = _features_frame(X), _labels_frame(y, len(X))
        table = _to_table(features, labels)
        predictor, encoder, _ = self._loaded()
        rows = BatchSource.of_table(table, encoder, "X", self.config_)
        metrics, notes = split_metrics(self.config_, predictor, rows)
        kind = first_of(task.kind for task in self.config_.tasks)
        values = [values.get(kind.headline) for values in metrics.values()]
        known = [value for value in values if value is not None]
        if not known:
            raise ValueError(f"y: no metric can be computed on these rows: {'; '.join(notes)}")
        mean = float(np.mean(known))
        return mean if kind.monitored[kind.headline] else -mean

    def save(self, path: str | Path) -> Path:
        """Copies the run directory to `path`, which must not exist.

        Returns:
            The path, which `mmoe evaluate`, `score` and `report` understand.
        """
        check_is_fitted(self, "run_directory_")
        if Path(path).exists():
            raise ValueError(f"{path}: exists already; choose another folder")
        shutil.copytree(self.run_directory_, path)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "MultiTaskRanker":
        """Loads an estimator from a run directory, its own or one of `mmoe train`."""
        run = RunDirectory.open(path)
        ranker = cls(config=str(run.config_file))
        ranker._take(run.path, run.config(), run.metrics())
        columns = dict.fromkeys(
            column for feature in ranker.config_.features for column in feature.source_columns
        )
        ranker.feature_names_in_ = np.asarray(list(columns), dtype=object)
        ranker.n_features_in_ = len(columns)
        return ranker

    def _take(self, folder: Path, config: RunConfig, metrics: dict[str, Any]) -> None:
        self.run_directory_ = folder
        self.config_ = config
        self.metrics_ = metrics
        self.task_names_ = [task.name for task in config.tasks]
        self._predictor = None

    def _loaded(self) -> tuple[Predictor, Any, RunConfig]:
        """The model, read at the first prediction."""
        if self._predictor is None:
            self._predictor = load_predictor(RunDirectory.open(self.run_directory_))
        return self._predictor

    def _config(self, table: pa.Table, labels: Sequence[str]) -> RunConfig:
        if not isinstance(self.settings, Mapping | None):
            raise ValueError(f"settings: expected a mapping, got {self.settings!r}")
        overrides = {
            key: getattr(self, name)
            for name, key in _SETTINGS.items()
            if getattr(self, name) is not None
        } | dict(self.settings or {})
        if self.config is None:
            if not labels:
                raise ValueError("y: expected a DataFrame with a column for each label, got None")
            raw = _inferred(table, labels)
        elif isinstance(self.config, RunConfig):
            raw = self.config.model_dump(mode="json")
        elif isinstance(self.config, Mapping):
            raw = dict(self.config)
        elif isinstance(self.config, str | Path):
            raw = load_config(self.config).model_dump(mode="json")
        else:
            raise ValueError(
                f"config: expected a RunConfig, a mapping or a YAML file, got {self.config!r}"
            )
        return config_from_dict(_assign(raw, overrides), origin="MultiTaskRanker")

    def _temporary_folder(self) -> Path:
        folder = tempfile.mkdtemp(prefix="mmoe-")
        # Removed with the estimator; `save` keeps a copy
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def __getstate__(self) -> dict[str, Any]:
        """With the files of the run, which may be in a temporary folder; without the model."""
        state = dict(cast(dict[str, Any], super().__getstate__()))
        state["_predictor"] = None
        if "run_directory_" in state:
            folder = Path(state["run_directory_"])
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            state["_files"] = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpacks the run into a folder of its own."""
        state = dict(state)
        files: dict[str, bytes] | None = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self.run_directory_ = self._temporary_folder()
            for name, content in files.items():
                path = self.run_directory_ / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def _inferred(table: pa.Table, labels: Sequence[str]) -> dict[str, Any]:
    """A config from the columns; says which were left out, since nobody reads the config here."""
    config, reasons = infer_config(table, list(labels), origin="X", split=False)
    if reasons.left_out:
        listed = "; ".join(f"{column!r}: {reason}" for column, reason in reasons.left_out)
        warnings.warn(f"columns of X left out ({listed})", stacklevel=4)
    return config.model_dump(mode="json")


def _hold_out(table: pa.Table, share: float, seed: int) -> tuple[pa.Table, pa.Table]:
    """Training and validation rows; at least one of each."""
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ValueError(f"validation: expected a share between 0 and 1, got {share!r}")
    if table.num_rows < 2:
        raise ValueError(f"X: expected at least 2 rows to train on, got {table.num_rows}")
    order = np.random.default_rng(seed).permutation(table.num_rows)
    held_out = min(max(1, round(table.num_rows * share)), table.num_rows - 1)
    return table.take(order[held_out:]), table.take(order[:held_out])


def _features_frame(X: pd.DataFrame | np.ndarray) -> pd.DataFrame:
    """A DataFrame with text column names; arrays (from a Pipeline) get x0, x1, …."""
    if isinstance(X, pd.DataFrame):
        return X.rename(columns=str)
    array = np.asarray(X)
    if array.ndim != 2:
        raise ValueError(
            f"X: expected a DataFrame or an array of two dimensions, got shape {array.shape}"
        )
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])


def _labels_frame(y: Any, rows: int) -> pd.DataFrame | None:
    """Labels as named columns: a Series' name, or label (label_0, label_1, …) for arrays."""
    if y is None:
        return None
    if isinstance(y, pd.Series):
        y = y.to_frame(y.name if y.name is not None else "label")
    if not isinstance(y, pd.DataFrame):
        array = np.asarray(y)
        if array.ndim == 1:
            y = pd.DataFrame({"label": array})
        else:
            y = pd.DataFrame(array, columns=[f"label_{i}" for i in range(array.shape[1])])
    if len(y) != rows:
        raise ValueError(f"y: expected {rows} rows, as many as X, got {len(y)}")
    return y.rename(columns=str)


def _to_table(features: pd.DataFrame, labels: pd.DataFrame | None) -> pa.Table:
    frames = [features] if labels is None else [features, labels]
    shared = [] if labels is None else [c for c in labels.columns if c in set(features.columns)]
    if shared:
        raise ValueError(
            f"X: holds the label column {shared[0]!r} as well as y; drop it from X, "
            f"or the model would see what it has to predict"
        )
    for which, frame in zip(("X", "y"), frames, strict=False):
        twice = frame.columns[frame.columns.duplicated()]
        if len(twice):
            raise ValueError(f"{which}: two columns are called {twice[0]!r}; rename one of them")
    columns: dict[str, Any] = {name: frame[name] for frame in frames for name in frame.columns}
    return pa.table({name: arrow_column(name, values) for name, values in columns.items()})


def _assign(raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Sets dotted keys; values pass through YAML, as `--set` on the command line does."""
    return set_values(
        raw, [f"{key}={json.dumps(value, default=_plain)}" for key, value in values.items()]
    )


def _plain(value: Any) -> Any:
    """NumPy's numbers, as searches over np.arange or randint hand them in."""
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"settings: expected numbers, texts or lists, got {value!r}")
