"""Measures of a task, and their change between two predictions of the same rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from mmoe.config import RunConfig
from mmoe.datasets import EncodedLabels
from mmoe.metrics import ObservedRows, auc, kind_of, paired_difference
from mmoe.metrics.calibration import normalised_entropy, row_log_losses
from mmoe.metrics.intervals import row_terms
from mmoe.metrics.task_kinds import HIGHER_IS_BETTER
from mmoe.train.measure import rows_that_count

# Of a task about an expert; alone: the only one that its gate sees
Verdict = Literal["needed", "unsure", "unneeded", "alone"]
# By metric: `value`, and the ends of its interval
Changes = Mapping[str, Mapping[str, float | None]]
# What an interval is, as explain.json and the page say it
MEANING = (
    "95 % interval of the paired difference by the rows alone: the same rows are predicted with "
    "the expert and without it (DeLong's for AUC, the first-order one for NE, RMSE and accuracy)"
)


@dataclass(frozen=True, kw_only=True)
class TaskMetric:
    """A metric by which a task is judged.

    Attributes:
        key: As in metrics.json.
        heading: What tables call it.
        form: How its value is written.
        higher_is_better: Its direction.
        relative: Its values have a unit, so a change counts as a share of the value.
    """

    key: str
    heading: str
    form: str
    higher_is_better: bool
    relative: bool


def _metrics_of_kind(kind_name: str) -> list[TaskMetric]:
    """The metrics of a kind of task: its headline and, where it has that, NE."""
    kind = kind_of(kind_name)
    keys = [kind.headline, *(["ne"] if "ne" in kind.keys and kind.headline != "ne" else [])]
    return [
        TaskMetric(
            key=key,
            heading=kind.column(key).heading,
            form=kind.column(key).form,
            higher_is_better=HIGHER_IS_BETTER[key],
            relative=key in ("rmse", "mae"),
        )
        for key in keys
    ]


# By metric: its value, and a term of each row that counts, float64; None: it cannot be computed
_Judged = dict[str, tuple[float | None, np.ndarray | None]]


class TaskJudge:
    """Judges predictions of one task against a first one, on the same rows.

    Args:
        config: Of the run.
        labels: Of the rows.
        task: Its place.
        base_NP: The first prediction, a column for each of `prediction_columns`.
        tolerance: As in `ExplainSettings`.
    """

    def __init__(
        self,
        config: RunConfig,
        labels: EncodedLabels,
        task: int,
        base_NP: np.ndarray,
        tolerance: float,
    ) -> None:
        self.config, self.labels, self.t, self.tolerance = config, labels, task, tolerance
        self.task = config.tasks[task]
        self.metrics = _metrics_of_kind(self.task.kind)
        self.base = self._judge(base_NP)
        self.values = {key: value for key, (value, _) in self.base.items()}

    def summary(self) -> dict[str, Any]:
        """Returns what explain.json holds of the task."""
        return {
            "name": self.task.name,
            "kind": self.task.kind,
            "rows": int(self.labels.observed_NT[:, self.t].sum()),
            "metrics": [asdict(metric) for metric in self.metrics],
            "values": self.values,
        }

    def changes(self, predictions_NP: np.ndarray) -> Changes:
        """Returns by metric what a prediction has above the first one, with its interval."""
        found: dict[str, dict[str, float | None]] = {}
        for key, (two, terms) in self._judge(predictions_NP).items():
            one, base_terms = self.base[key]
            if one is None or two is None:
                found[key] = {"value": None, "low": None, "high": None}
                continue
            difference = paired_difference(np.array([two]), np.array([one]), terms, base_terms)
            found[key] = {end: getattr(difference, end) for end in ("value", "low", "high")}
        return found

    def verdicts(self, changes: Changes) -> dict[str, Verdict]:
        """Returns by metric whether the task needs what is gone."""
        return verdicts_of(self.metrics, changes, self.values, self.tolerance)

    def _judge(self, predictions_NP: np.ndarray) -> _Judged:
        rows = rows_that_count(self.config, self.labels, self.t, predictions_NP)
        empty = len(rows) == 0 or (rows.weights is not None and rows.weights.sum() == 0)
        found: _Judged = {}
        for key in (metric.key for metric in self.metrics):
            value = None if empty else _value(key, self.task.kind, rows)
            found[key] = value, None if empty else row_terms(key, rows)
        return found


def row_losses(config: RunConfig, labels: EncodedLabels, predictions_NP: np.ndarray) -> np.ndarray:
    """Returns each row's part of the mean log-loss of the tasks; the sum is that mean.

    Tasks without a log-loss are left out.

    Args:
        config: Of the run.
        labels: Of the rows.
        predictions_NP: Of the same rows, a column for each of `prediction_columns`.
    """
    loss_N, tasks = np.zeros(len(labels)), 0
    for t, task in enumerate(config.tasks):
        if kind_of(task.kind).loss_metric != "logloss":
            continue
        rows = rows_that_count(config, labels, t, predictions_NP)
        weights = np.ones(len(rows)) if rows.weights is None else rows.weights
        if not weights.sum() > 0:
            continue
        own = weights * row_log_losses(rows.labels, rows.predictions) / weights.sum()
        loss_N[labels.observed_NT[:, t]] += own
        tasks += 1
    return loss_N / max(tasks, 1)


def harm(metric: TaskMetric, change: Mapping[str, Any], base: float | None) -> tuple[float, float]:
    """Returns the ends of how much worse a metric became, from the least to the most.

    In units of the metric, or as a share of its value where that has a unit. Without an interval
    both ends are the change.
    """
    if change["value"] is None:
        return 0.0, 0.0
    ends = [change["value"] if change[end] is None else change[end] for end in ("low", "high")]
    scale = abs(base) if metric.relative and base else 1.0
    worse = sorted(end / scale * (-1 if metric.higher_is_better else 1) for end in ends)
    return worse[0], worse[1]


def verdicts_of(
    metrics: Sequence[TaskMetric],
    changes: Mapping[str, Mapping[str, Any]],
    base: Mapping[str, float | None],
    tolerance: float,
) -> dict[str, Verdict]:
    """Returns by metric whether a task needs what is gone.

    `needed`: the metric's whole interval is worse by more than the tolerance; `unneeded`: none of
    it is; else `unsure`. A metric without a value says nothing, and where none has one (rows of one
    label alone, or without any) nobody knows: `unsure`.
    """
    if all(changes[metric.key]["value"] is None for metric in metrics):
        return {metric.key: "unsure" for metric in metrics}
    return {m.key: _verdict(*harm(m, changes[m.key], base[m.key]), tolerance) for m in metrics}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns a task's verdict: it needs what one of its metrics needs."""
    return min(verdicts, key=("alone", "needed", "unsure", "unneeded").index)


def _verdict(least: float, most: float, tolerance: float) -> Verdict:
    return "needed" if least > tolerance else "unsure" if most > tolerance else "unneeded"


def _value(key: str, kind: str, rows: ObservedRows) -> float | None:
    if key == "auc":
        return auc(rows.labels, rows.predictions, rows.weights)
    if key == "ne":
        return normalised_entropy(rows.labels, rows.predictions, rows.weights)
    return kind_of(kind).metrics(rows, "").values.get(key)
