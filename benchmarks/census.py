"""Census-Income: mmoe against logistic regression and boosted trees, on the same rows.

Every seed trains a recipe anew; the two baselines are fitted once for each split. The table gives
test AUCs (mean ± standard deviation over the seeds) and the paired difference with its 95 %
interval; the last line is JSON.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.first_try.judge import auc, paired_difference
from benchmarks.first_try.race import BASELINES
from benchmarks.racing.harness import last_line, new_table, show
from mmoe.config import RunConfig
from mmoe.datasets import encode_labels, load_recipe, load_splits
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.splits import Splits
from mmoe.score import load_predictor
from mmoe.train import train_run


@dataclass(frozen=True)
class Row:
    recipe: str
    split_seed: int
    task: str
    aucs: list[float]
    seconds: list[float]
    baseline: str
    baseline_auc: float
    difference: float
    low: float
    high: float


def main() -> None:
    arguments = _arguments()
    rows: list[Row] = []
    for recipe in arguments.recipes:
        for split_seed in arguments.split_seeds:
            rows += _compare(recipe, split_seed, arguments)
    _print_table(rows)
    last_line({"benchmark": "census", "rows": [asdict(row) for row in rows]})


def _compare(recipe: str, split_seed: int, arguments: argparse.Namespace) -> list[Row]:
    overrides = [*arguments.set, f"split_seed={split_seed}"]
    config = load_recipe(recipe, overrides)
    splits = load_splits(config, arguments.data)
    labels_NT = encode_labels(config, splits.test, splits.origin).labels_NT
    baselines = {
        name: fit(config, splits.train, splits.test, origin=splits.origin)
        for name, fit in BASELINES.items()
    }
    predictions, seconds = [], []
    for seed in arguments.seeds:
        predictions_NT, took = _train(load_recipe(recipe, [*overrides, f"seed={seed}"]), splits)
        predictions.append(predictions_NT)
        seconds.append(took)
    rows = []
    for t, task in enumerate(config.tasks):
        for name, fitted in baselines.items():
            other_N = fitted[task.name].predictions_N
            labels_N, own = labels_NT[:, t], [own_NT[:, t] for own_NT in predictions]
            found = paired_difference(labels_N, own, [other_N] * len(own))
            aucs = [auc(labels_N, own_N) for own_N in own]
            rows.append(
                Row(recipe, split_seed, task.name, aucs, seconds, name, auc(labels_N, other_N),
                    found.mean, found.low, found.high)
            )  # fmt: skip
    return rows


def _train(config: RunConfig, splits: Splits) -> tuple[np.ndarray, float]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        finished = train_run(config, Path(folder) / "run", splits=splits)
        seconds = time.perf_counter() - start
        predictor, encoder, config = load_predictor(finished.directory)
        features = encoder.encode(splits.test, splits.origin)
        predictions_NT = predictor.predict(EncodedData(features=features))
    aucs = ", ".join(f"{n} {m['auc']:.5f}" for n, m in finished.metrics["tasks"].items())
    print(
        f"{config.name}, split {config.split_seed}, seed {config.seed}: {aucs}; {seconds:.0f} s",
        flush=True,
    )
    return predictions_NT, seconds


def _print_table(rows: list[Row]) -> None:
    columns = ("recipe", "split", "task", "test AUC (mean ± sd)", "against", "AUC")
    table = new_table((*columns, "difference [95 % interval]", "s/run"))
    for row in rows:
        spread = statistics.stdev(row.aucs) if len(row.aucs) > 1 else 0.0
        own = f"{statistics.fmean(row.aucs):.5f} ± {spread:.5f}"
        interval = f"{row.difference:+.5f} [{row.low:+.5f}, {row.high:+.5f}]"
        cells = (own, row.baseline, f"{row.baseline_auc:.5f}", interval)
        seconds = f"{statistics.fmean(row.seconds):.0f}"
        table.add_row(row.recipe, f"{row.split_seed}", row.task, *cells, seconds)
    show("", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Census-Income against two baselines.")
    parser.add_argument("--data", type=Path, required=True, help="folder with the two files")
    parser.add_argument("--recipes", nargs="+", default=["census-income"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--split-seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
