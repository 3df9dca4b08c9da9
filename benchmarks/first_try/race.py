"""The untouched config and its rivals on one log, and how they compare."""

import contextlib
import hashlib
import io
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

import mmoe.cli
import mmoe.embeddings.sharded.backend
import mmoe.train
from benchmarks.first_try.logs import EITHER, ID, LIST, TIME, VECTOR, Kinds, Log, hashes, zipf
from mmoe.config import RunConfig, load_config
from mmoe.datasets import encode_labels, load_recipe, load_splits
from mmoe.datasets.labels.expressions import columns_of
from mmoe.metrics import auc_difference_interval
from mmoe.train.baselines import boosted_trees, logistic_regression

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

    @classmethod
    def of(cls, kinds: Mapping[str, Kinds], frame: pd.DataFrame) -> "Columns":
        found: dict[str, list[str]] = {
            use: [] for use in ("ids", "ordered", "numbers", "lists", "vectors")
        }
        for name, right in kinds.items():
            if right == TIME:
                continue
            if right == EITHER and _distinct(frame, name) <= _FEW:
                use = "ordered"
            elif right in (LIST, VECTOR):
                use = "lists" if right == LIST else "vectors"
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
    return ColumnTransformer(steps, sparse_threshold=1.0)


def for_trees(columns: Columns, frame: pd.DataFrame) -> tuple[ColumnTransformer, int]:
    """Ids of few values as categories, others by their mean label; how many come first."""
    few = [c for c in columns.ids if _distinct(frame, c) < _NATIVE]
    many = [c for c in columns.ids if c not in few]
    ordinal = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
    )
    seed: Any = 0
    by_label = TargetEncoder(target_type="binary", random_state=seed)
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


# Who is ahead on a task, and by how much

_NEAR = 0.002  # AUC by which a win may be missed
_LOWEST = -0.005  # that the lower end of an interval may reach
_GAP = 0.005  # between the better rival and the oracle, from which a share of it is taken
_NORMAL_95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One task of one log."""

    log: str
    family: str
    task: str  # Name of the label
    auc: float  # Ours, mean over the seeds
    better: str  # The best rival's name
    better_auc: float  # Its AUC on the test rows
    oracle: float  # Of the true probabilities; NaN where nobody knows them
    difference: float  # Ours less the better, mean over the seeds
    low: float  # Lower end of its 95 % interval
    high: float  # Upper end

    @property
    def won(self) -> bool:
        tied = self.low <= 0 <= self.high and self.low >= _LOWEST
        return self.difference >= -_NEAR or tied

    @property
    def share_of_gap(self) -> float | None:
        gap = self.oracle - self.better_auc
        return self.difference / gap if gap >= _GAP else None

    def __str__(self) -> str:
        best = "" if math.isnan(self.oracle) else f"best possible {self.oracle:.4f}  "
        lost = "" if self.won else "  lost"
        return (
            f"  {self.task:12} {self.auc:.4f}  {self.better:26} {self.better_auc:.4f}  {best}"
            f"{self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}]{lost}"
        )

    def as_json(self) -> dict[str, Any]:
        return {k: round(v, 5) if isinstance(v, float) else v for k, v in asdict(self).items()}


def paired_difference(
    labels_N: np.ndarray, ours: Sequence[np.ndarray], other_N: np.ndarray
) -> tuple[float, float, float, float]:
    """Returns our mean AUC, its difference to the other's, and both ends of the interval.

    Two things vary: the test rows, which all seeds share (DeLong's variance, not averaged away),
    and the seed: `Var = mean(se²) + sd² / seeds`.
    """
    pairs = [auc_difference_interval(labels_N, own_N, other_N) for own_N in ours]
    differences = [pair.difference for pair in pairs]
    variance = statistics.fmean(pair.standard_error**2 for pair in pairs)
    if len(pairs) > 1:
        variance += statistics.variance(differences) / len(pairs)
    mean, reach = statistics.fmean(differences), _NORMAL_95 * variance**0.5
    return statistics.fmean(pair.auc_a for pair in pairs), mean, mean - reach, mean + reach


def judged(
    labels_N: np.ndarray,  # Of the rows whose label is known; all other arrays are of these rows
    ours: Sequence[np.ndarray],  # Scores of each seed
    rivals: Mapping[str, np.ndarray],  # Name → scores
    *,
    log: str,  # The log's name
    family: str,
    task: str,  # Name of the label
    true_N: np.ndarray | None = None,  # The true probabilities, where somebody knows them
) -> Verdict:
    """Returns how our scores, one array a seed, stand against the better of the rivals'."""
    aucs = {name: auc(labels_N, scores_N) for name, scores_N in rivals.items()}
    better = max(aucs, key=aucs.__getitem__)
    mean, difference, low, high = paired_difference(labels_N, ours, rivals[better])
    return Verdict(
        log=log,
        family=family,
        task=task,
        auc=mean,
        better=better,
        better_auc=aucs[better],
        oracle=float("nan") if true_N is None else auc(labels_N, true_N),
        difference=difference,
        low=low,
        high=high,
    )


def auc(labels_N: np.ndarray, scores_N: np.ndarray) -> float:
    return float(roc_auc_score(labels_N, scores_N))


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the keys that the targets name, over all tasks of all logs."""
    shares = [v.share_of_gap for v in verdicts if v.share_of_gap is not None]
    families = sorted({v.family for v in verdicts})
    return {
        "wins": round(statistics.fmean(v.won for v in verdicts), 4),
        "worst_gap": round(min(v.difference for v in verdicts), 5),
        "share_of_gap": round(statistics.median(shares), 4) if shares else None,
        "mean_gain": {
            family: round(statistics.fmean(v.difference for v in verdicts if v.family == family), 5)
            for family in families
        },
    }


# The untouched config: `mmoe init`, `mmoe train`, `mmoe score`, without a look at the file

# The rivals' libraries are imported before they are timed, so these are too


@dataclass(frozen=True)
class Trained:
    scores: dict[str, np.ndarray]  # task → float32 [N]
    seconds: float


def command(*arguments: object) -> str:
    """Runs a command of mmoe in this process; returns what it prints."""
    text = io.StringIO()
    with _arguments(arguments), contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            mmoe.cli.main()
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"mmoe {arguments[0]}: {text.getvalue()[-2000:]}") from None
    return text.getvalue()


def inferred(log: Path, labels: Sequence[str], config: Path) -> tuple[RunConfig, float]:
    config.unlink(missing_ok=True)
    start = time.perf_counter()
    given = [part for label in labels for part in ("--label", label)]
    command("init", log, *given, "--out", config)
    return load_config(config), time.perf_counter() - start


def trained(config: Path, test: Path, seed: int, overrides: Sequence[str]) -> Trained:
    run, scored = config.with_name(f"run-{seed}"), config.with_name(f"scores-{seed}.parquet")
    shutil.rmtree(run, ignore_errors=True)
    given = [part for value in overrides for part in ("--set", value)]
    start = time.perf_counter()
    command("train", config, "--out", run, "--quiet", "--set", f"seed={seed}", *given)
    seconds = time.perf_counter() - start
    scored.unlink(missing_ok=True)
    command("score", run, "--input", test, "--output", scored, "--quiet")
    table = pq.read_table(scored)
    shutil.rmtree(run)
    scored.unlink()
    scores = {
        name.removeprefix("pred_"): table[name].to_numpy().astype(np.float32)
        for name in table.column_names
    }
    return Trained(scores, seconds)


def kinds_found(config: RunConfig, columns: Mapping[str, Kinds]) -> dict[str, str]:
    found: dict[str, set[str]] = {name: set() for name in columns}
    for feature in config.features:
        if feature.kind == "cross":
            continue
        for column in feature.source_columns:
            found.get(column, set()).add(feature.kind)
    return {name: _one(kinds) for name, kinds in found.items()}


def _one(kinds: set[str]) -> str:
    if kinds == {"numeric", "categorical"}:
        return "both"
    return kinds.pop() if len(kinds) == 1 else "left_out" if not kinds else "several"


@contextlib.contextmanager
def _arguments(arguments: Sequence[object]) -> Iterator[None]:
    before, sys.argv = sys.argv, ["mmoe", *map(str, arguments)]
    try:
        yield
    finally:
        sys.argv = before


# Logistic regression and boosted trees, as they come and lightly tuned

_TRIALS = 8
_TUNED_ON = 60_000  # rows that a trial is fitted on

# From the settings of a trial to an unfitted model
Build = Callable[[Mapping[str, Any]], Pipeline]


@dataclass(frozen=True)
class Rival:
    """A model's predictions on the test rows."""

    name: str  # Of the model
    scores_N: np.ndarray  # Probabilities
    settings: Mapping[str, Any]  # What was chosen


def rivals(
    columns: Columns, parts: Mapping[str, pd.DataFrame], task: str, test: pd.DataFrame
) -> list[Rival]:
    """Fits both models, as they come and tuned on the validation rows, to one task."""
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


# One generated log: the untouched config against the rivals, task by task

_SMALL = 30_000  # rows below which seeds vary more
_SEEDS, _SEEDS_SMALL = 3, 5

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Raced:
    """What came of one log."""

    verdicts: list[Verdict]  # One a task
    right: dict[str, bool]  # Column → whether init found a kind that is right
    wrong: dict[str, str]  # Column → what it was taken for instead
    # Seconds of init and training over those of fitting boosted trees to each task, which
    # alternate; medians
    seconds_over_trees: float


def race(
    log: Log, folder: Path, *, test_rows: int, seeds: int | None, overrides: Sequence[str], say: Say
) -> Raced:
    folder.mkdir(parents=True, exist_ok=True)
    config_path, train_path, test_path = (
        folder / name for name in ("config.yaml", "train.parquet", "test.parquet")
    )
    pq.write_table(log.training(), train_path)
    test, true = log.test(test_rows)
    pq.write_table(test, test_path)
    config, init_seconds = inferred(train_path, list(log.rates), config_path)
    found = kinds_found(config, log.kinds)
    wrong = {name: kind for name, kind in found.items() if kind not in log.kinds[name]}
    say(f"{log.name}: init {init_seconds:.1f} s; wrong: {wrong or 'none'}")
    splits = load_splits(config)
    parts = {"train": frame_of(splits.train), "validation": frame_of(splits.validation)}
    columns = Columns.of(log.kinds, parts["train"])
    against = _rivals(log, config, folder, parts, columns, test)
    runs, of_trees = [], []
    for seed in range(1, 1 + (seeds or (_SEEDS_SMALL if log.rows < _SMALL else _SEEDS))):
        of_trees.append(seconds_of_trees(columns, parts["train"], list(log.rates)))
        runs.append(trained(config_path, test_path, seed, overrides))
    verdicts = []
    for task in log.rates:
        labels_N = test[task].to_numpy(zero_copy_only=False).astype(np.float64)
        seen_N = ~np.isnan(labels_N)
        verdicts.append(
            judged(
                labels_N[seen_N],
                [run.scores[task][seen_N] for run in runs],
                {rival.name: rival.scores_N[seen_N] for rival in against[task]},
                log=log.name,
                family=log.family,
                task=task,
                true_N=true[task][seen_N],
            )
        )
        say(str(verdicts[-1]))
    trees = statistics.median(of_trees)
    mine = init_seconds + statistics.median(run.seconds for run in runs)
    say(f"  fitted in {mine:.1f} s, boosted trees in {trees:.2f} s: {mine / trees:.1f} times")
    right = {name: name not in wrong for name in found}
    return Raced(verdicts=verdicts, right=right, wrong=wrong, seconds_over_trees=mine / trees)


def _rivals(
    log: Log,
    config: RunConfig,
    folder: Path,
    parts: Mapping[str, pd.DataFrame],
    columns: Columns,
    test: pa.Table,
) -> dict[str, list[Rival]]:
    """Those of every task: fitted, or read if the rows and this code are the same."""
    key = hashlib.sha256(
        (config.data.split.model_dump_json() + str(config.split_seed) + str(test.num_rows)).encode()
    ).hexdigest()[:12]
    stored = folder / f"rivals-{key}.npz"
    if stored.exists():
        return _read(stored)
    labels = list(log.rates)
    rows = frame_of(test, without=labels)
    found = {task: rivals(columns, parts, task, rows) for task in labels}
    _write(stored, found)
    return found


def _write(path: Path, found: Mapping[str, Sequence[Rival]]) -> None:
    about: dict[str, Any] = {
        task: [[r.name, dict(r.settings)] for r in each] for task, each in found.items()
    }
    arrays = {f"{t}/{i}": r.scores_N for t, each in found.items() for i, r in enumerate(each)}
    np.savez(path, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def _read(path: Path) -> dict[str, list[Rival]]:
    with np.load(path, allow_pickle=False) as stored:
        about = json.loads(str(stored["about"]))
        return {
            task: [
                Rival(name, stored[f"{task}/{i}"], settings)
                for i, (name, *_, settings) in enumerate(each)
            ]
            for task, each in about.items()
        }


# Real logs: the untouched config against the rivals on a recipe's columns

REAL = {"census-income": "census-income", "hillstrom": "hillstrom"}  # recipe → folder
BASELINES = {"logistic regression": logistic_regression, "boosted trees": boosted_trees}


def race_real(name: str, data: Path, folder: Path, *, seeds: int, say: Say) -> list[Verdict]:
    """Trains on the recipe's training rows as one file, judges on its test rows.

    The file holds the columns as they came, and each task's label as 0 and 1.
    """
    recipe = load_recipe(name)
    splits = load_splits(recipe, data / REAL[name])
    labels = [task.name for task in recipe.tasks]
    both = pa.concat_tables([splits.train, splits.validation])
    parts = (table_of(recipe, rows, splits.origin) for rows in (both, splits.test))
    runs, _, seconds = _untouched(folder, labels, *parts, seeds)
    say(f"{name}: init {seconds:.1f} s")
    encoded = encode_labels(recipe, splits.test, splits.origin)
    others = _baselines(recipe, splits.train, splits.test, origin=splits.origin)
    verdicts = []
    for t, task in enumerate(labels):
        seen_N = np.asarray(encoded.observed_NT)[:, t].astype(bool)
        labels_N = np.asarray(encoded.labels_NT)[seen_N, t]
        scores = {rival: fitted[task].predictions_N[seen_N] for rival, fitted in others.items()}
        own = [run.scores[task][seen_N] for run in runs]
        verdicts.append(judged(labels_N, own, scores, log=name, family="real", task=task))
        say(str(verdicts[-1]))
    return verdicts


def _untouched(
    folder: Path, labels: Sequence[str], train: pa.Table, test: pa.Table, seeds: int
) -> tuple[list[Trained], RunConfig, float]:
    """Runs of an untouched config on two files, the config, and the seconds of init."""
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "train.parquet", folder / "test.parquet"
    pq.write_table(train, files[0])
    pq.write_table(test.drop_columns(list(labels)), files[1])
    config, seconds = inferred(files[0], labels, folder / "config.yaml")
    path = folder / "config.yaml"
    return [trained(path, files[1], seed, ()) for seed in range(1, seeds + 1)], config, seconds


def _baselines(config: RunConfig, train: pa.Table, test: pa.Table, **more: Any) -> dict[str, Any]:
    return {name: fit(config, train, test, **more) for name, fit in BASELINES.items()}


def table_of(recipe: RunConfig, rows: pa.Table, origin: str) -> pa.Table:
    """Returns rows as they came, without what a label is made of; labels are 0, 1 or missing."""
    encoded = encode_labels(recipe, rows, origin)
    used = {
        column
        for task in recipe.tasks
        for formula in (task.label, task.observed_when)
        if formula is not None
        for column in columns_of(formula)
    }
    table = rows.drop_columns([column for column in used if column in rows.column_names])
    for t, task in enumerate(recipe.tasks):
        values_N = np.asarray(encoded.labels_NT)[:, t].astype(np.int64)
        hidden_N = ~np.asarray(encoded.observed_NT)[:, t].astype(bool)
        table = table.append_column(task.name, pa.array(values_N, mask=hidden_N))
    return table


# Peers' sample files of 20 to 50 test rows: that they train, and what can be said of them

# Folder → the label with two outcomes in every part
SAMPLES = {"ali-ccp": "click", "aliexpress": "click", "census-torch-rechub": "income"}


def race_sample(name: str, data: Path, folder: Path, *, seeds: int, say: Say) -> Verdict:
    """Trains on a sample's training (and validation) rows, judges on its test rows.

    Two to ten positives decide nothing: the interval says so.
    """
    label, parts = SAMPLES[name], data / "samples" / name
    found = [parts / f"{part}.csv" for part in ("train", "val") if (parts / f"{part}.csv").exists()]
    train = pa.concat_tables(map(pacsv.read_csv, found), promote_options="permissive")
    test = pacsv.read_csv(parts / "test.csv").cast(train.schema)
    runs, config, _ = _untouched(folder, [label], train, test, seeds)
    labels_N = np.asarray(test[label], np.float64)
    others = _baselines(config, train, test)
    scores = {rival: fitted[label].predictions_N for rival, fitted in others.items()}
    own = [run.scores[label] for run in runs]
    verdict = judged(labels_N, own, scores, log=name, family="samples", task=label)
    say(f"{name} ({len(labels_N)} rows, {int(labels_N.sum())} positive):\n{verdict}")
    return verdict


# How long `mmoe init` looks at 400,000 rows of 30 columns

_ROWS = 400_000


def init_seconds(folder: Path) -> float:
    log, config = folder / "wide.parquet", folder / "wide.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(_wide(), log)
    config.unlink(missing_ok=True)
    command = [sys.executable, "-m", "mmoe", "init", str(log), "--out", str(config)]
    command += ["--label", "click", "--label", "sale"]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def _wide() -> pa.Table:
    rng = np.random.default_rng(500)
    columns: dict[str, np.ndarray] = {}
    logit = np.zeros(_ROWS)
    for i in range(12):
        size = int(10 ** rng.uniform(0.5, 5))
        ids_N = zipf(rng, size, _ROWS, 0.9)
        columns[f"k{i}"] = rng.permutation(size)[ids_N]
        logit += rng.normal(0, 0.3, size)[ids_N]
    for i in range(5):
        size = int(10 ** rng.uniform(0.5, 4))
        ids_N = zipf(rng, size, _ROWS, 0.9)
        columns[f"t{i}"] = hashes(rng, size)[ids_N]
        logit += rng.normal(0, 0.3, size)[ids_N]
    for i in range(10):
        values_N = rng.lognormal(2, 1, _ROWS) if i % 2 else rng.normal(0, 1, _ROWS)
        columns[f"n{i}"] = np.round(values_N, 3) if i < 6 else np.round(values_N)
        logit += 0.2 * np.tanh(values_N - values_N.mean())
    columns["ts"] = 1_760_000_000 + np.sort(rng.integers(0, 2_000_000, _ROWS))
    for name, low in (("click", 1.5), ("sale", 3.5)):
        columns[name] = (rng.random(_ROWS) < 1 / (1 + np.exp(low - logit))).astype(np.int64)
    return pa.table(columns)
