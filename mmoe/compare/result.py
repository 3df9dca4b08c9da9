"""Result of a comparison, compare.json: measures, and intervals of differences."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mmoe.config import RunConfig
from mmoe.datasets import EncodedLabels, Splits
from mmoe.metrics import Difference, kind_of, paired_difference
from mmoe.metrics.intervals import r_squared, row_terms
from mmoe.train import PreparedData
from mmoe.train.measure import metrics_of, rows_that_count


@dataclass(frozen=True, kw_only=True)
class ComparedRows:
    """Splits as tables, for simple models, and encoded."""

    config: RunConfig
    splits: Splits
    prepared: PreparedData

    @property
    def test_labels(self) -> EncodedLabels:
        """Labels of the test rows."""
        held = self.prepared.test.held
        assert held is not None and held.labels is not None, "rows in memory carry labels"
        return held.labels

    def shared(self, config: RunConfig) -> PreparedData | None:
        """Returns the encoded rows for a model's run; None: its labels differ (ESMM)."""
        return self.prepared if config.trained_tasks == self.config.trained_tasks else None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Result of one training.

    Attributes:
        predictions_NP: float64, of the test rows.
        parameters: Weights, tables included; None: it has none (trees).
        seconds: That training took.
        rows_per_second: In training; None: there are no epochs.
    """

    predictions_NP: np.ndarray
    parameters: int | None
    seconds: float
    rows_per_second: float | None


# What the interval is, as compare.json and the page say it
MEANING = (
    "95 % interval of the mean difference over seeds: two variances are added, that of the test "
    "rows (of the difference averaged over the seeds, on the same rows: DeLong's for AUC, the "
    "first-order one for RMSE, MAE and R²) and that of the seeds (of the differences seed by "
    "seed, divided by their number); Student's t with Satterthwaite's degrees of freedom, and the "
    "normal quantile below four seeds, which are too few for t. With one seed it is of the test "
    "rows alone"
)


# A mean over tasks of errors, each in units of its own label, would say nothing
_IN_MEANS: Mapping[str, str] = {"rmse": "r2"}


@dataclass(frozen=True, kw_only=True)
class _Measure:
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


def _measures_of(config: RunConfig) -> list[_Measure]:
    """The measures of every task, then means over two tasks or more."""
    measures: list[_Measure] = []
    in_means: dict[str, list[tuple[int, _Measure]]] = {}
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
            measures.append(replace(like, task="mean", metric=metric, headline=False, tasks=tasks))
    return measures


def _of_task(name: str, kind_name: str, t: int) -> list[_Measure]:
    kind = kind_of(kind_name)
    column = kind.column(kind.headline)
    headline = _Measure(
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
    r2 = {"metric": "r2", "heading": "R²", "form": "{:.4f}", "higher_is_better": True}
    return [headline, replace(headline, headline=False, **r2)]


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """A model's values, seed by seed, and its row terms, averaged over the seeds.

    Attributes:
        values: A measure's key → float64 [S]; None: it cannot be computed.
        terms: A measure's key → float64 [N] of all test rows, 0 where a row does not count; None:
            the metric has none.
    """

    values: Mapping[str, np.ndarray | None]
    terms: Mapping[str, np.ndarray | None]


def _judge(
    rows: ComparedRows, measures: Sequence[_Measure], predictions: Sequence[np.ndarray]
) -> _Judged:
    """Measures a model, by its predictions with each seed, float64 [N, T]."""
    by_seed = [_judge_one(rows, measures, one_NT) for one_NT in predictions]
    values, terms = {}, {}
    for measure in measures:
        values_S, terms_SN = zip(*(one[measure.key] for one in by_seed), strict=True)
        values[measure.key] = None if None in values_S else np.array(values_S, dtype=np.float64)
        terms[measure.key] = _mean(terms_SN)
    return _Judged(values=values, terms=terms)


_Found = tuple[float | None, np.ndarray | None]


def _judge_one(
    rows: ComparedRows, measures: Sequence[_Measure], predictions_NP: np.ndarray
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
        judged = rows_that_count(rows.config, rows.test_labels, t, predictions_NP)
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


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model with its entries: one for each seed, or one alone.

    Attributes:
        name: A kind of model, or of a simple one.
        title: For tables.
        folders: Of the entries.
        seeds: None: it has none.
        entries: In the order of the seeds.
    """

    name: str
    title: str
    folders: Sequence[str]
    seeds: Sequence[int] | None
    entries: Sequence[Entry]


def comparison(
    rows: ComparedRows, models: Sequence[Trained], reference: str | None = None
) -> dict[str, Any]:
    """Judges all models against one of them, on the test rows.

    Args:
        rows: Of the comparison.
        models: At least one.
        reference: Name of the model that the others are compared with; default: the first.

    Returns:
        What compare.json holds.
    """
    measures = _measures_of(rows.config)
    judged = [_judge(rows, measures, [e.predictions_NP for e in one.entries]) for one in models]
    names = [one.name for one in models]
    number = 0 if reference is None else names.index(reference)
    observed_T = rows.test_labels.observed_NT.sum(axis=0)
    prepared = rows.prepared
    return {
        "name": rows.config.name,
        "origin": prepared.origin,
        "rows": {
            "train": len(prepared.train),
            "validation": len(prepared.validation),
            "test": len(prepared.test),
        },
        "test_rows": {task.name: int(observed_T[t]) for t, task in enumerate(rows.config.tasks)},
        "reference": models[number].title,
        "measures": [measure.as_dict() for measure in measures],
        "models": [
            _of_model(one, mine, None if m == number else judged[number], measures)
            for m, (one, mine) in enumerate(zip(models, judged, strict=True))
        ],
        "winners": [
            _winner(measure, dict(zip(names, judged, strict=True)))
            for measure in measures
            if measure.headline
        ],
        "interval": MEANING,
    }


def _winner(measure: _Measure, judged: Mapping[str, _Judged]) -> dict[str, Any]:
    """The best model of a task, the second best, and whether they can be told apart."""
    sign = 1 if measure.higher_is_better else -1
    values = {name: one.values[measure.key] for name, one in judged.items()}
    means = {
        name: sign * float(own_S.mean()) for name, own_S in values.items() if own_S is not None
    }
    ranked = sorted(means, key=lambda name: -means[name])  # stable: of equals the first one named
    found: dict[str, Any] = {"task": measure.task, "key": measure.key}
    if len(ranked) < 2:  # simple models are always there: no test row has a label
        return found | {"model": None, "second": None}
    best, second = ranked[:2]
    difference = _difference(measure, judged[best], judged[second])
    verdict = difference.verdict(higher_is_better=measure.higher_is_better)
    found |= {"model": best, "second": second, "difference": asdict(difference)}
    return found | {"sure": verdict == "gains"}


def _of_model(
    model: Trained, mine: _Judged, reference: _Judged | None, measures: Sequence[_Measure]
) -> dict[str, Any]:
    results = {measure.key: _result(measure, mine, reference) for measure in measures}
    headlines = [measure for measure in measures if measure.headline]
    rates = [e.rows_per_second for e in model.entries if e.rows_per_second is not None]
    return {
        "name": model.name,
        "title": model.title,
        "seeds": None if model.seeds is None else list(model.seeds),
        "folders": list(model.folders),
        "parameters": model.entries[0].parameters,
        "rows_per_second": float(np.mean(rates)) if rates else None,
        "seconds": float(np.mean([entry.seconds for entry in model.entries])),
        "results": results,
        "gains": _tasks_that(headlines, results, "gains"),
        "pays": _tasks_that(headlines, results, "pays"),
    }


def _tasks_that(
    headlines: Sequence[_Measure], results: dict[str, dict[str, Any]], verdict: str
) -> list[str]:
    return [m.task for m in headlines if results[m.key].get("verdict") == verdict]


def _result(measure: _Measure, mine: _Judged, reference: _Judged | None) -> dict[str, Any]:
    """The result of one measure; that of the reference itself has no difference."""
    own_S = mine.values[measure.key]
    if own_S is None:
        return {"values": None, "mean": None, "sd": None, "difference": None, "verdict": None}
    found: dict[str, Any] = {
        "values": own_S.tolist(),
        "mean": float(own_S.mean()),
        "sd": float(own_S.std(ddof=1)) if len(own_S) > 1 else None,
        "difference": None,
        "verdict": None,
    }
    if reference is not None and reference.values[measure.key] is not None:
        difference = _difference(measure, mine, reference)
        found["difference"] = asdict(difference)
        found["verdict"] = difference.verdict(higher_is_better=measure.higher_is_better)
    return found


def _difference(measure: _Measure, mine: _Judged, other: _Judged) -> Difference:
    own_S, other_S = mine.values[measure.key], other.values[measure.key]
    assert own_S is not None and other_S is not None
    return paired_difference(own_S, other_S, mine.terms[measure.key], other.terms[measure.key])
