"""The whole road in one command: `make demo`, or `python -m benchmarks.demo --out FOLDER`.

Trains the synthetic funnel, evaluates against the best possible result and a logistic regression on
the same rows, scores a Parquet file, writes the report. The last line printed is JSON.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.racing.harness import last_line, new_table, show
from mmoe.compare.baselines import logistic_regression
from mmoe.config import RunConfig
from mmoe.datasets.recipes import load_recipe
from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.rows.splits import Splits
from mmoe.metrics.auc import auc
from mmoe.report import write_report
from mmoe.run import RunDirectory
from mmoe.run.console import ConsoleReporter
from mmoe.score import score_files
from mmoe.train import train_run


def main() -> None:
    arguments = _arguments()
    reporter = ConsoleReporter()
    start = time.perf_counter()
    config = load_recipe("synthetic-funnel", arguments.set)
    folder: Path = arguments.out
    if folder.exists():
        shutil.rmtree(folder)
    reporter.say("1/4 generate the log and train")
    splits = load_splits(config, None)
    run = train_run(config, folder / "run", splits=splits, reporter=reporter)

    reporter.say("2/4 logistic regression on the same rows")
    baseline = _logistic_regression_auc(config, splits)

    reporter.say("3/4 score a Parquet file")
    scored = _score(run.directory, splits.test, folder, reporter)

    reporter.say("4/4 write the report")
    page = write_report(run.directory.path)

    tasks = {
        name: {
            "auc": metrics["auc"],
            "oracle_auc": metrics["oracle_auc"],
            "logistic_regression_auc": baseline[name],
        }
        for name, metrics in run.metrics["tasks"].items()
    }
    _print_table(tasks, run.metrics, time.perf_counter() - start)
    print(f"open {page} in a browser; scores are in {scored}")
    last_line({"tasks": tasks, "scored": str(scored), "report": str(page)})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder, replaced if it exists"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE")
    arguments = parser.parse_args()
    folder: Path = arguments.out
    if folder.exists() and not (folder / "run" / "config.yaml").exists() and any(folder.iterdir()):
        sys.stderr.write(f"--out {folder}: exists and is no earlier demo; choose another folder\n")
        sys.exit(2)
    return arguments


def _logistic_regression_auc(config: RunConfig, splits: Splits) -> dict[str, float]:
    predictions = logistic_regression(config, splits.train, splits.test)
    aucs = {}
    for task, rows in predictions.items():
        observed = rows.observed_N
        value = auc(rows.labels_N[observed], rows.predictions_N[observed])
        assert value is not None, "the demo's test rows hold both classes"
        aucs[task] = value
    return aucs


def _score(run: RunDirectory, test: pa.Table, folder: Path, reporter: ConsoleReporter) -> Path:
    """Scores the test rows as a nightly job would: from a file that has no labels."""
    labels = {task.label for task in run.config().tasks}
    inputs = test.select([name for name in visible_columns(test) if name not in labels])
    source, scored = folder / "impressions.parquet", folder / "scores.parquet"
    pq.write_table(inputs, source)
    score_files(run, source, scored, keep=["user_id", "item_id"], reporter=reporter)
    return scored


def _print_table(tasks: dict[str, dict[str, float]], metrics: dict, seconds: float) -> None:
    columns = ("task", "mmoe", "best possible", "gap", "logistic regression", "gap")
    table = new_table(columns, "Test AUC")
    for name, aucs in tasks.items():
        best, linear = aucs["oracle_auc"], aucs["logistic_regression_auc"]
        cells = (aucs["auc"], best, best - aucs["auc"], linear, best - linear)
        table.add_row(name, *(f"{cell:.4f}" for cell in cells))
    show("", table)
    rate, train = metrics["train"]["rows_per_second"], metrics["train"]["seconds"]
    print(f"trained {train:.0f} s at {rate:,.0f} rows/s; {seconds:.0f} s in all")


if __name__ == "__main__":
    main()
