"""Peers' sample files of 20 to 50 test rows: that they train, and what can be said of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from benchmarks.first_try.judge import Verdict, judged
from benchmarks.first_try.ours import inferred, trained
from mmoe.train.baselines import boosted_trees, logistic_regression

# Folder → the label with two outcomes in every part
SAMPLES = {"ali-ccp": "click", "aliexpress": "click", "census-torch-rechub": "income"}
_BASELINES = {"logistic regression": logistic_regression, "boosted trees": boosted_trees}

Say = Callable[[str], None]


def race_sample(name: str, data: Path, folder: Path, *, seeds: int, say: Say) -> Verdict:
    """Trains on a sample's training (and validation) rows, judges on its test rows.

    Two to ten positives decide nothing: the interval says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    label, parts = SAMPLES[name], data / "samples" / name
    found = [parts / f"{part}.csv" for part in ("train", "val") if (parts / f"{part}.csv").exists()]
    train = pa.concat_tables(map(pacsv.read_csv, found), promote_options="permissive")
    test = pacsv.read_csv(parts / "test.csv").cast(train.schema)
    train_path, test_path = folder / "train.parquet", folder / "test.parquet"
    pq.write_table(train, train_path)
    pq.write_table(test.drop_columns([label]), test_path)
    config, _ = inferred(train_path, [label], folder / "config.yaml")
    runs = [trained(folder / "config.yaml", test_path, seed, ()) for seed in range(1, seeds + 1)]
    labels_N = np.asarray(test[label], np.float64)
    scores = {
        rival: fit(config, train, test)[label].predictions_N for rival, fit in _BASELINES.items()
    }
    own = [run.scores[label] for run in runs]
    verdict = judged(labels_N, own, scores, log=name, family="samples", task=label)
    say(
        f"{name} ({len(labels_N)} rows, {int(labels_N.sum())} positive): {label} "
        f"{verdict.auc:.3f}  {verdict.better} {verdict.difference:+.3f} "
        f"[{verdict.low:+.3f}, {verdict.high:+.3f}]"
    )
    return verdict
