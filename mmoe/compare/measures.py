"""What models are compared by: each task's headline metric, and means over tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mmoe.compare.rows import ComparedRows
from mmoe.config import RunConfig
from mmoe.metrics.row_terms import r_squared, row_terms
from mmoe.metrics.task_kinds import kind_of
from mmoe.train.measure import metrics_of

# A mean over tasks of errors, each in units of its own label, would say nothing
_IN_MEANS: Mapping[str, str] = {"rmse": "r2"}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of each model.

    Attributes:
        task: Its name, or `mean`.
        metric: Its key.
        heading: What tables call the metric.
        form: How its value is written.
        higher_is_better: Its direction.
        headline: It decides whether a task gains or pays.
        tasks: Numbers of the tasks that it is of.
    """

    task: str
    metric: str
    heading: str
    form: str
    higher_is_better: bool
    headline: bool
    tasks: Sequence[int]

    @property
    def key(self) -> str:
        """Its name, as a monitor's."""
        return f"{self.task}.{self.metric}"

    def as_dict(self) -> dict[str, Any]:
        """Returns what compare.json holds."""
        return {"key": self.key, **asdict(self), "tasks": len(self.tasks)}


def measures_of(config: RunConfig) -> list[Measure]:
    """Lists what is measured: of every task, then means over two tasks or more.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}, {"name": "buy", "label": "buy"}]})
        >>> [measure.key for measure in measures_of(config)]
        ['click.auc', 'buy.auc', 'mean.auc']
    """
    measures: list[Measure] = []
    in_means: dict[str, list[tuple[int, Measure]]] = {}
    for t, task in enumerate(config.tasks):
        own = _of_task(task.name, task.kind, t)
        measures += own
        metric = _IN_MEANS.get(own[0].metric, own[0].metric)
        one = next((measure for measure in own if measure.metric == metric), own[0])
        in_means.setdefault(metric, []).append((t, one))
    for metric, found in in_means.items():
        taken = {measure.key for measure in measures}  # a task may be called mean
        if len(found) > 1 and f"mean.{metric}" not in taken:
            like = found[0][1]
            tasks = tuple(t for t, _ in found)
            mean = Measure(task="mean", headline=False, tasks=tasks, metric=metric, **_looks(like))
            measures.append(mean)
    return measures


def _looks(measure: Measure) -> dict[str, Any]:
    return {name: getattr(measure, name) for name in ("heading", "form", "higher_is_better")}


def _of_task(name: str, kind_name: str, t: int) -> list[Measure]:
    kind = kind_of(kind_name)
    column = kind.column(kind.headline)
    headline = Measure(
        task=name,
        metric=kind.headline,
        heading=column.heading,
        form=column.form.replace("{:.4g}", "{:#.4g}"),  # 153.0 beside 105.9
        higher_is_better=kind.monitored[kind.headline],
        headline=True,
        tasks=(t,),
    )
    if kind.headline not in _IN_MEANS:
        return [headline]
    r2 = Measure(
        task=name,
        metric="r2",
        heading="R²",
        form="{:.4f}",
        higher_is_better=True,
        headline=False,
        tasks=(t,),
    )
    return [headline, r2]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A model's values, seed by seed, and its row terms, averaged over the seeds.

    Attributes:
        values: Measure's key → float64 [S]; None: it cannot be computed.
        terms: Measure's key → float64 [N] of all test rows, 0 where a row does not count; None:
            the metric has none.
    """

    values: Mapping[str, np.ndarray | None]
    terms: Mapping[str, np.ndarray | None]


def judge(
    rows: ComparedRows, measures: Sequence[Measure], predictions: Sequence[np.ndarray]
) -> Judged:
    """Measures a model.

    Args:
        rows: Of the comparison.
        measures: Of its config.
        predictions: float64 [N, T] for each seed.
    """
    by_seed = [_judge_one(rows, measures, one_NT) for one_NT in predictions]
    values, terms = {}, {}
    for measure in measures:
        values_S, terms_SN = zip(*(one[measure.key] for one in by_seed), strict=True)
        values[measure.key] = None if None in values_S else np.array(values_S, dtype=np.float64)
        terms[measure.key] = _mean(terms_SN)
    return Judged(values=values, terms=terms)


_Found = tuple[float | None, np.ndarray | None]


def _judge_one(
    rows: ComparedRows, measures: Sequence[Measure], predictions_NP: np.ndarray
) -> dict[str, _Found]:
    """Value and terms of each measure; means come last, out of those of tasks."""
    metrics, _ = metrics_of(rows.config, predictions_NP, rows.test_labels)
    found: dict[str, _Found] = {}
    for measure in measures:
        if len(measure.tasks) > 1:
            names = [rows.config.tasks[t].name for t in measure.tasks]
            parts = [found[f"{name}.{measure.metric}"] for name in names]
            values = [value for value, _ in parts if value is not None]
            mean = float(np.mean(values)) if len(values) == len(parts) else None
            found[measure.key] = mean, _mean([terms for _, terms in parts])
            continue
        t = measure.tasks[0]
        judged = rows.judged(t, predictions_NP[:, t])
        if measure.metric == "r2":
            value = r_squared(judged)
        else:
            value = metrics[measure.task][measure.metric]
        terms_n = row_terms(measure.metric, judged)
        terms_N = None
        if terms_n is not None:
            terms_N = np.zeros(len(predictions_NP))
            terms_N[rows.test_labels.observed_NT[:, t]] = terms_n
        found[measure.key] = value, terms_N
    return found


def _mean(terms: Sequence[np.ndarray | None]) -> np.ndarray | None:
    known = [one for one in terms if one is not None]
    return np.mean(known, axis=0) if known and len(known) == len(terms) else None
