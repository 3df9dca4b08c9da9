"""Real logs: the untouched config against the rivals on a recipe's columns."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.first_try.judge import Verdict, judged
from benchmarks.first_try.ours import inferred, trained
from mmoe.config import RunConfig
from mmoe.datasets import encode_labels, load_recipe, load_splits
from mmoe.datasets.labels.expressions import columns_of
from mmoe.train.baselines import boosted_trees, logistic_regression

REAL = {"census-income": "census-income", "hillstrom": "hillstrom"}  # recipe → folder
_BASELINES = {"logistic regression": logistic_regression, "boosted trees": boosted_trees}

Say = Callable[[str], None]


def race_real(name: str, data: Path, folder: Path, *, seeds: int, say: Say) -> list[Verdict]:
    """Trains on the recipe's training rows as one file, judges on its test rows.

    The file holds the columns as they came, and each task's label as 0 and 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recipe = load_recipe(name)
    splits = load_splits(recipe, data / REAL[name])
    labels = [task.name for task in recipe.tasks]
    train_path, test_path = folder / "train.parquet", folder / "test.parquet"
    pq.write_table(
        table_of(recipe, pa.concat_tables([splits.train, splits.validation]), splits.origin),
        train_path,
    )
    pq.write_table(table_of(recipe, splits.test, splits.origin).drop_columns(labels), test_path)
    config_path = folder / "config.yaml"
    _, seconds = inferred(train_path, labels, config_path)
    say(f"{name}: init {seconds:.1f} s")
    runs = [trained(config_path, test_path, seed, ()) for seed in range(1, seeds + 1)]
    encoded = encode_labels(recipe, splits.test, splits.origin)
    others = {
        rival: fit(recipe, splits.train, splits.test, origin=splits.origin)
        for rival, fit in _BASELINES.items()
    }
    verdicts = []
    for t, task in enumerate(labels):
        seen_N = np.asarray(encoded.observed_NT)[:, t].astype(bool)
        labels_N = np.asarray(encoded.labels_NT)[seen_N, t]
        scores = {rival: fitted[task].predictions_N[seen_N] for rival, fitted in others.items()}
        own = [run.scores[task][seen_N] for run in runs]
        verdict = judged(labels_N, own, scores, log=name, family="real", task=task)
        say(
            f"  {task:12} {verdict.auc:.4f}  {verdict.better:26} {verdict.difference:+.4f} "
            f"[{verdict.low:+.4f}, {verdict.high:+.4f}]"
        )
        verdicts.append(verdict)
    return verdicts


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
