"""The untouched config on one log, next to its rivals."""

import contextlib
import hashlib
import io
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import mmoe.cli
import mmoe.embeddings.sharded.backend
import mmoe.train
from benchmarks.first_try.judge import Metric, Verdict, judged
from benchmarks.first_try.logs import INTERACTING, Kinds, Log, hashes, zipf
from benchmarks.first_try.rivals import Columns, Rival, frame_of, rivals, seconds_of_trees
from mmoe.compare.baselines import boosted_trees, logistic_regression
from mmoe.config import RunConfig, load_config
from mmoe.datasets import encode_labels, load_recipe, load_splits, split_table
from mmoe.datasets.labels.expressions import columns_of

# The untouched config: `mmoe init`, `mmoe train`, `mmoe score`, without a look at the file

# The rivals' libraries are imported before they are timed, so these are too


@dataclass(frozen=True)
class Trained:
    scores: dict[str, np.ndarray]  # task → float32 [N]
    seconds: float
    starts: dict[str, np.ndarray]  # The same before the first epoch; empty: not asked


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


def inferred(
    log: Path, labels: Sequence[str], config: Path, told: Sequence[str] = ()
) -> tuple[RunConfig, float]:
    config.unlink(missing_ok=True)
    start = time.perf_counter()
    given = [part for label in labels for part in ("--label", label)]
    command("init", log, *given, *told, "--out", config)
    return load_config(config), time.perf_counter() - start


def trained(
    config: Path, test: Path, seed: int, overrides: Sequence[str], *, with_start: bool = False
) -> Trained:
    """Trains and scores; of the start too, where it is asked for."""
    run = config.with_name(f"run-{seed}")
    shutil.rmtree(run, ignore_errors=True)
    overrides = [*overrides, f"seed={seed}"]
    if with_start:
        overrides.append(f"training.keep_checkpoints={_ALL}")
    given = [part for value in overrides for part in ("--set", value)]
    start = time.perf_counter()
    command("train", config, "--out", run, "--quiet", *given)
    seconds = time.perf_counter() - start
    scores = _scored(run, test)
    starts = {}
    if with_start:
        _score_as_started(run)
        starts = _scored(run, test)
    shutil.rmtree(run)
    return Trained(scores, seconds, starts)


_ALL = 1_000  # checkpoints: more than there are epochs


def _score_as_started(run: Path) -> None:
    """Lets the run score by its first checkpoint: the wide part, before the network was trained."""
    index = run / "checkpoint" / "index.json"
    held = json.loads(index.read_text())
    first = held["kept"][0]
    if first != "step-00000000":
        raise RuntimeError(f"{index}: the first checkpoint is {first}, not that of the start")
    index.write_text(json.dumps({**held, "best": first}))


def _scored(run: Path, test: Path) -> dict[str, np.ndarray]:
    scored = run.with_suffix(".parquet")
    scored.unlink(missing_ok=True)
    command("score", run, "--input", test, "--output", scored, "--quiet")
    table = pq.read_table(scored)
    scored.unlink()
    return {
        name.removeprefix("pred_"): table[name].to_numpy().astype(np.float32)
        for name in table.column_names
    }


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
    train, (test, true) = log.training(), log.test(test_rows)
    pq.write_table(train, train_path)
    pq.write_table(test, test_path)
    config, init_seconds = inferred(train_path, list(log.rates), config_path, log.told)
    found = kinds_found(config, log.kinds)
    wrong = {name: kind for name, kind in found.items() if kind not in log.kinds[name]}
    say(f"{log.name}: init {init_seconds:.1f} s; wrong: {wrong or 'none'}")
    # All columns, those too that the config leaves out
    data = config.data
    cut = split_table(train, data.split, config.split_seed, log.name, None, data.repeated_rows)
    parts = {"train": frame_of(cut[0]), "validation": frame_of(cut[1])}
    columns, metrics = Columns.of(log.kinds, parts["train"]), metrics_of(log)
    against = _rivals(metrics, config, folder, parts, columns, test)
    runs, of_trees = [], []
    with_start = log.name in INTERACTING
    count = seeds or log.seeds or (_SEEDS_SMALL if train.num_rows < _SMALL else _SEEDS)
    for seed in range(1, 1 + count):
        of_trees.append(seconds_of_trees(columns, parts["train"], metrics))
        runs.append(trained(config_path, test_path, seed, overrides, with_start=with_start))
    verdicts = []
    for task in log.rates:
        verdicts.append(_verdict(log, task, test, true.get(task), runs, against[task]))
        say(str(verdicts[-1]))
    trees = statistics.median(of_trees)
    mine = init_seconds + statistics.median(run.seconds for run in runs)
    say(f"  fitted in {mine:.1f} s, boosted trees in {trees:.2f} s: {mine / trees:.1f} times")
    right = {name: name not in wrong for name in found}
    return Raced(verdicts=verdicts, right=right, wrong=wrong, seconds_over_trees=mine / trees)


def metrics_of(log: Log) -> dict[str, Metric]:
    return {task: "auc" if rate is not None else "r2" for task, rate in log.rates.items()}


def _verdict(
    log: Log,
    task: str,
    test: pa.Table,
    true_N: np.ndarray | None,
    runs: Sequence[Trained],
    against: Sequence[Rival],
) -> Verdict:
    labels_N = test[task].to_numpy(zero_copy_only=False).astype(np.float64)
    seen_N = ~np.isnan(labels_N)
    return judged(
        labels_N[seen_N],
        [run.scores[task][seen_N] for run in runs],
        {rival.name: rival.scores_N[seen_N] for rival in against},
        log=log.name,
        family=log.family,
        task=task,
        metric=metrics_of(log)[task],
        by_time=log.by_time,
        true_N=None if true_N is None else true_N[seen_N],
        starts=[run.starts[task][seen_N] for run in runs if run.starts],
    )


def _rivals(
    metrics: Mapping[str, Metric],
    config: RunConfig,
    folder: Path,
    parts: Mapping[str, pd.DataFrame],
    columns: Columns,
    test: pa.Table,
) -> dict[str, list[Rival]]:
    """Those of every task: fitted, or read if the rows and this code are the same."""
    split = f"{config.data.split.model_dump_json()}{config.split_seed}"
    rows_of = [(folder / f"{part}.parquet").read_bytes() for part in ("train", "test")]
    key = hashlib.sha256(b"".join([split.encode(), *rows_of])).hexdigest()[:12]
    stored = folder / f"rivals-{key}.npz"
    if stored.exists():
        return _read(stored)
    rows = frame_of(test, without=list(metrics))
    found = {task: rivals(columns, parts, task, metric, rows) for task, metric in metrics.items()}
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
