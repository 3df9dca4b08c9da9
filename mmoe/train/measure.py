"""Metrics of rows that were predicted: of all of them, and of each domain's."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch

from mmoe.config import METRICS, LabelSpec, RunConfig, TaskConfig, prediction_columns
from mmoe.config.tasks import further_columns
from mmoe.datasets import EncodedLabels
from mmoe.datasets.features.domains import Domains, asked_tasks
from mmoe.datasets.labels.maturity import masked_counts
from mmoe.metrics import ObservedRows, TaskMetrics, kind_of, task_metrics
from mmoe.metrics.columns import WITH_BIAS
from mmoe.metrics.task_kinds.base import observed_rows

Metrics = dict[str, dict[str, Any]]
Found = TypeVar("Found")


def losses_of_mean(config: RunConfig, labels: Mapping[str, LabelSpec]) -> dict[str, float]:
    """Returns the loss of predicting the mean for every row: an entropy in nats, or a variance.

    Args:
        config: Its tasks; those whose loss is neither a log-loss nor a squared error are left out.
        labels: Statistics of the labels of training rows, by task.
    """
    found = {}
    for task in config.trained_tasks:
        kind, spec = kind_of(task.kind), labels.get(task.name)
        if spec is None or not (kind.linear_logit and task.event is None):
            continue
        if not kind.is_event:
            found[task.name] = spec.deviation**2
        elif kind.loss_metric == "logloss" and 0 < spec.mean < 1:
            p = spec.mean
            found[task.name] = -float(p * np.log(p) + (1 - p) * np.log1p(-p))
    return found


def metrics_of(
    config: RunConfig,
    predictions_NT: np.ndarray,
    labels: EncodedLabels,
    oracle: Mapping[str, np.ndarray] | None = None,
    *,
    all_negatives: bool = False,
    intervals: bool = True,
) -> tuple[Metrics, list[str]]:
    """Computes metrics as `split_metrics` does, with intervals, from predictions that exist.

    Where the log kept the share r of a task's negatives, each counts 1/r times, so that metrics
    are those of the full log; `all_negatives` says that these rows hold them all. Of columns behind
    those that tasks have, predictions with the display as logged, there are metrics too, under keys
    that end in `_with_bias`.
    """
    metrics: Metrics = {}
    notes: list[str] = []
    groups_N = labels.groups_N
    if groups_N is not None:
        groups_N = np.where(groups_N < 0, np.nan, groups_N)  # rows without a key join no group
    masked = masked_counts(config, labels)

    def measured(t: int, seen_NT: np.ndarray, **more: Any) -> TaskMetrics:
        task = config.tasks[t]
        return task_metrics(
            task.kind,
            labels.labels_NT[:, t],
            seen_NT[:, t],
            labels.observed_NT[:, t],
            weights=row_weights(task, labels, t, all_negatives),
            name=task.name,
            further=seen_NT[:, further_columns(config.tasks, t)] if task.further else None,
            **more,
        )

    def found(t: int) -> TaskMetrics:
        task = config.tasks[t]
        return measured(
            t,
            predictions_NT,
            groups=groups_N,
            oracle=None if oracle is None else oracle.get(task.name),
            named=[METRICS.implementation(metric)(metric) for metric in task.metrics],
            intervals=intervals,
        )

    logged_NT = predictions_NT[:, len(prediction_columns(config.tasks)) :]
    for t, (values, task_notes) in enumerate(of_tasks(found, len(config.tasks))):
        task = config.tasks[t]
        if task.name in masked:
            values["masked"] = masked[task.name]["masked"]
        if logged_NT.shape[1]:
            logged, _ = measured(t, logged_NT)
            values |= {key + WITH_BIAS: logged[key] for key in kind_of(task.kind).with_bias_keys}
        metrics[task.name] = values
        notes += task_notes
        if task.negative_sampling_rate != 1 and not all_negatives:
            notes.append(_describe_rate(task))
    return metrics, notes


def _describe_rate(task: TaskConfig) -> str:
    rate = task.negative_sampling_rate
    return (
        f"{task.name}: each negative counts {1 / rate:g} times, as the log keeps {rate:g} of them"
    )


def of_tasks(found: Callable[[int], Found], tasks: int) -> list[Found]:
    """Asks for each task, as many at a time as torch has threads: NumPy sorts without Python."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(found, range(tasks)))


def row_weights(
    task: TaskConfig, labels: EncodedLabels, t: int, all_negatives: bool = False
) -> np.ndarray | None:
    """Returns what each row counts in the task's metrics; None = 1."""
    weights_N = labels.weights_NT[:, t] if task.weight_column else None
    if task.negative_sampling_rate == 1 or all_negatives:
        return weights_N
    each_N = np.where(labels.labels_NT[:, t] > 0.5, 1.0, 1 / task.negative_sampling_rate)
    return each_N if weights_N is None else weights_N * each_N


def rows_that_count(
    config: RunConfig, labels: EncodedLabels, t: int, predictions_NP: np.ndarray
) -> ObservedRows:
    """Returns the rows on which task t is judged, with predictions for them.

    Args:
        config: Of the run.
        labels: Of all rows.
        t: Number of the task.
        predictions_NP: Of all rows, a column for each of `prediction_columns`.

    Raises:
        ValueError: A prediction is none of such a task.
    """
    task = config.tasks[t]
    return observed_rows(
        kind_of(task.kind),
        labels.labels_NT[:, t],
        predictions_NP[:, t],
        labels.observed_NT[:, t],
        weights=row_weights(task, labels, t),
        further=predictions_NP[:, further_columns(config.tasks, t)] if task.further else None,
        name=task.name,
    )


def domain_metrics(
    config: RunConfig,
    domains: Domains | None,
    predictions_NT: np.ndarray,
    labels: EncodedLabels,
    oracle: Mapping[str, np.ndarray] | None = None,
    *,
    all_negatives: bool = False,
) -> dict[str, Any]:
    """Returns what metrics.json holds of the domains: nothing where a run has none.

    Args:
        config: Of the run.
        domains: That its encoder knows.
        predictions_NT: Of all rows.
        labels: Of the same rows.
        oracle: Their true probabilities, by task, where they are known.
        all_negatives: As of `metrics_of`.

    Returns:
        `domains`: the column, and an entry for each domain that has rows: its name (None: rows of
        no known one), how many rows there are, and the metrics of the tasks that exist there,
        without intervals.
    """
    section = config.model.domains
    if section is None or domains is None or labels.domains_N is None:
        return {}
    asked = asked_tasks(config.tasks, domains)
    entries = []
    for code, name in enumerate((*domains.names, None)):
        mine_N = labels.domains_N == code
        if not mine_N.any():
            continue
        truth = None if oracle is None else {t: p_N[mine_N] for t, p_N in oracle.items()}
        found, _ = metrics_of(
            config,
            predictions_NT[mine_N],
            labels.taken(mine_N),
            truth,
            all_negatives=all_negatives,
            intervals=False,
        )
        tasks = {
            task.name: found[task.name]
            for t, task in enumerate(config.tasks)
            if asked is None or bool(asked[code, t])
        }
        entries.append({"domain": name, "rows": int(mine_N.sum()), "tasks": tasks})
    return {"domains": {"column": section.column, "each": entries}}
