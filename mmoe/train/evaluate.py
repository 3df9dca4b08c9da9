"""Metrics of a model on labelled rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmoe.config import RunConfig
from mmoe.datasets.encoded import EncodedData
from mmoe.datasets.sources import load_test
from mmoe.score.console import Reporter, SilentReporter
from mmoe.score.predictor import Predictor, load_predictor
from mmoe.score.run_directory import RunDirectory
from mmoe.tasks.curves import task_curves
from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.tasks.metrics import task_metrics
from mmoe.train.prepare import encode

Metrics = dict[str, dict[str, Any]]


def split_metrics(
    config: RunConfig,
    predictor: Predictor,
    data: EncodedData,
    oracle: Mapping[str, np.ndarray] | None = None,
) -> tuple[Metrics, list[str]]:
    """Metrics of every task on one split, each on the rows where its label is observed.

    Returns:
        Metrics by task as in metrics.json, and notes on what could not be computed.
    """
    return metrics_of(config, predictor.predict(data), data, oracle)


def metrics_of(
    config: RunConfig,
    predictions_NT: np.ndarray,
    data: EncodedData,
    oracle: Mapping[str, np.ndarray] | None = None,
) -> tuple[Metrics, list[str]]:
    """As `split_metrics`, from predictions that exist already."""
    metrics: Metrics = {}
    notes: list[str] = []
    labels = data.labels
    assert labels is not None, "these rows carry labels"
    groups_N = labels.groups_N
    if groups_N is not None:
        groups_N = np.where(groups_N < 0, np.nan, groups_N)  # rows without a key join no group
    for t, task in enumerate(config.tasks):
        values, task_notes = task_metrics(
            task.kind,
            labels.labels_NT[:, t],
            predictions_NT[:, t],
            labels.observed_NT[:, t],
            weights=labels.weights_NT[:, t] if task.weight_column else None,
            groups=groups_N,
            oracle=None if oracle is None else oracle.get(task.name),
            name=task.name,
        )
        metrics[task.name] = values
        notes += task_notes
    return metrics, notes


def split_curves(
    config: RunConfig,
    predictor: Predictor,
    data: EncodedData,
    oracle: Mapping[str, np.ndarray] | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Predictions of a split, and what curves.json holds about it."""
    gates = GateStatistics()

    predictions_NT = predictor.predict(data, on_gates=gates.update)
    labels = data.labels
    assert labels is not None, "these rows carry labels"
    tasks = {
        task.name: task_curves(
            task.kind,
            labels.labels_NT[:, t],
            predictions_NT[:, t],
            labels.observed_NT[:, t],
            weights=labels.weights_NT[:, t] if task.weight_column else None,
            oracle=None if oracle is None else oracle.get(task.name),
            name=task.name,
        )
        for t, task in enumerate(config.tasks)
    }
    return predictions_NT, {"tasks": tasks, "gates": gates.summary()}


def evaluate_run(
    run: RunDirectory, data: Path | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Evaluates a run's best model; the result has the form of metrics.json.

    Args:
        run: A trained run.
        data: Labelled rows; None: the run's own test split. Bundled sources take their folder and
            evaluate on its test split.
        reporter: Told of progress and of what could not be computed.

    Raises:
        ValueError: The run or the data cannot be used.
    """
    reporter = reporter or SilentReporter()
    stored = run.metrics()
    predictor, encoder, config = load_predictor(run)
    rows = load_test(config, data)
    encoded = encode(config, encoder, rows.table, rows.origin)
    with reporter.track("evaluating", len(encoded), "rows") as tracker:
        predictions_NT = predictor.predict(encoded, tracker=tracker)
    metrics, notes = metrics_of(config, predictions_NT, encoded, rows.oracle)
    for note in notes:
        reporter.say(f"note: {note}")
    return {**stored, "tasks": metrics}
