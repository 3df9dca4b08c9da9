"""Who is ahead on a task, by how much, and what is made of all tasks."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

from benchmarks.first_try.logs import INTERACTING, OLD
from mmoe.metrics.intervals import of_predictions, row_terms

Metric = Literal["auc", "r2"]  # Of a binary label, of a regression


def auc(labels_N: np.ndarray, scores_N: np.ndarray) -> float:
    return float(roc_auc_score(labels_N, scores_N))


def r2(labels_N: np.ndarray, scores_N: np.ndarray) -> float:
    return float(r2_score(labels_N, scores_N))


MEASURES: dict[Metric, Callable[[np.ndarray, np.ndarray], float]] = {"auc": auc, "r2": r2}
_NEAR = {"auc": 0.002, "r2": 0.01}  # by which a win may be missed
_LOWEST = {"auc": -0.005, "r2": -0.02}  # that the lower end of an interval may reach
_GAP = 0.005  # between the better rival and the oracle, from which a share of it is taken
_NORMAL_95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One series of scores against another on the same rows, means over seeds."""

    value: float  # Of the first
    other: float  # Of the second
    mean: float  # First less second
    low: float  # Lower end of its 95 % interval
    high: float  # Upper end


def paired_difference(
    labels_N: np.ndarray,
    ours: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    metric: Metric = "auc",
) -> Difference:
    """Returns our mean metric, the others', and the difference with its interval.

    Two things vary: the test rows, which all seeds share (DeLong's variance or, for R², the first
    order of its change by a row; not averaged away), and the seed:
    `Var = mean(se²) + sd² / seeds`.

    Args:
        labels_N: Of the rows whose label is known; all other arrays are of these rows.
        ours: Scores of each seed.
        others: The same of whom they are held against.
        metric: By which.
    """
    measure = MEASURES[metric]
    values = [
        (measure(labels_N, a), measure(labels_N, b)) for a, b in zip(ours, others, strict=True)
    ]
    differences = [a - b for a, b in values]
    variance = statistics.fmean(
        float(((_terms(metric, labels_N, a) - _terms(metric, labels_N, b)) ** 2).sum())
        for a, b in zip(ours, others, strict=True)
    )
    if len(differences) > 1:
        variance += statistics.variance(differences) / len(differences)
    value, other = (statistics.fmean(side) for side in zip(*values, strict=True))
    mean, reach = statistics.fmean(differences), _NORMAL_95 * variance**0.5
    return Difference(value=value, other=other, mean=mean, low=mean - reach, high=mean + reach)


def _terms(metric: Metric, labels_N: np.ndarray, scores_N: np.ndarray) -> np.ndarray:
    terms = row_terms(metric, of_predictions(labels_N, scores_N.astype(np.float64)))
    assert terms is not None, "there are two rows of each class"
    return terms


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One task of one log."""

    log: str
    family: str
    task: str  # Name of the label
    metric: Metric = "auc"
    by_time: bool = False  # Whether the test rows lie after the training rows
    value: float  # Ours, mean over the seeds
    better: str  # The best rival's name
    better_value: float  # Its metric on the test rows
    oracle: float  # Of the true probabilities or means; NaN where nobody knows them
    difference: float  # Ours less the better, mean over the seeds
    low: float  # Lower end of its 95 % interval
    high: float  # Upper end
    # Ours over the lowest of the rivals': mean absolute errors; NaN of a binary label
    mae_over_best: float = math.nan
    # Of the wide part as it was fitted, before the first epoch, on the same rows; NaN: not asked
    start: float = math.nan
    gain: float = math.nan  # Of the final model over it
    gain_low: float = math.nan
    gain_high: float = math.nan

    @property
    def won(self) -> bool:
        tied = self.low <= 0 <= self.high and self.low >= _LOWEST[self.metric]
        return self.difference >= -_NEAR[self.metric] or tied

    @property
    def learnt(self) -> bool:
        """Whether the final model is above its start by more than chance gives."""
        return self.gain_low > 0

    @property
    def share_of_gap(self) -> float | None:
        gap = self.oracle - self.better_value
        return self.difference / gap if gap >= _GAP else None

    def __str__(self) -> str:
        best = "" if math.isnan(self.oracle) else f"best possible {self.oracle:.4f}  "
        lost = "" if self.won else "  lost"
        start = ""
        if not math.isnan(self.gain):
            start = f"  start {self.start:.4f}, {self.gain:+.4f} from {self.gain_low:+.4f}"
        error = "" if math.isnan(self.mae_over_best) else f"  MAE {self.mae_over_best:.3f} times"
        return (
            f"  {self.task:12} {self.metric} {self.value:.4f}  {self.better:26} "
            f"{self.better_value:.4f}  {best}"
            f"{self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}]{lost}{error}{start}"
        )

    def as_json(self) -> dict[str, Any]:
        """Returns what is known; `auc` and `better_auc`, or `r2` and `better_r2`."""
        held = {k: round(v, 5) if isinstance(v, float) else v for k, v in asdict(self).items()}
        held[self.metric] = held.pop("value")
        held[f"better_{self.metric}"] = held.pop("better_value")
        new = ("mae_over_best", "start", "gain", "gain_low", "gain_high")
        return {k: v for k, v in held.items() if k not in new or not math.isnan(v)}


def judged(
    labels_N: np.ndarray,  # Of the rows whose label is known; all other arrays are of these rows
    ours: Sequence[np.ndarray],  # Scores of each seed
    rivals: Mapping[str, np.ndarray],  # Name → scores
    *,
    log: str,  # The log's name
    family: str,
    task: str,  # Name of the label
    metric: Metric = "auc",
    by_time: bool = False,
    true_N: np.ndarray | None = None,  # The true probabilities or means, where they are known
    starts: Sequence[np.ndarray] = (),  # Scores of each seed before the first epoch
) -> Verdict:
    """Returns how our scores, one array a seed, stand against the better of the rivals'."""
    measure = MEASURES[metric]
    values = {name: measure(labels_N, scores_N) for name, scores_N in rivals.items()}
    better = max(values, key=values.__getitem__)
    found = paired_difference(labels_N, ours, [rivals[better]] * len(ours), metric)
    more: dict[str, float] = {}
    if metric == "r2":
        errors = [mean_absolute_error(labels_N, scores_N) for scores_N in rivals.values()]
        mine = statistics.fmean(float(mean_absolute_error(labels_N, own_N)) for own_N in ours)
        more["mae_over_best"] = mine / float(min(errors))
    if starts:
        gain = paired_difference(labels_N, ours, starts, metric)
        more |= {
            "start": gain.other, "gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high
        }  # fmt: skip
    return Verdict(
        log=log,
        family=family,
        task=task,
        metric=metric,
        by_time=by_time,
        value=found.value,
        better=better,
        better_value=values[better],
        oracle=math.nan if true_N is None else measure(labels_N, true_N),
        difference=found.mean,
        low=found.low,
        high=found.high,
        **more,
    )


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the keys that the targets name; None: no task of that kind was raced.

    `wins`, `worst_gap`, `share_of_gap`: of the families in `OLD`; `_all`: of all tasks.
    """
    old = [v for v in verdicts if v.family in OLD]
    shares = [v.share_of_gap for v in old if v.share_of_gap is not None]
    aucs, r2s = ([v for v in verdicts if v.metric == metric] for metric in MEASURES)
    return {
        "wins": _mean(v.won for v in old),
        "worst_gap": _lowest(old),
        "share_of_gap": round(statistics.median(shares), 4) if shares else None,
        "wins_all": _mean(v.won for v in verdicts),
        "worst_gap_all": _lowest(aucs),
        "worst_gap_r2": _lowest(r2s),
        "wins_time": _mean(v.won for v in verdicts if v.by_time),
        "experts_learn": _mean(v.learnt for v in verdicts if v.log in INTERACTING),
        "mean_gain": _mean_gain(aucs),
        "mean_gain_r2": _mean_gain(r2s),
    }


def _mean_gain(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Of each family."""
    found: dict[str, list[float]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.family, []).append(verdict.difference)
    return {family: round(statistics.fmean(found[family]), 5) for family in sorted(found)}


def _mean(values: Iterable[bool]) -> float | None:
    found = list(values)
    return round(statistics.fmean(found), 4) if found else None


def _lowest(verdicts: Sequence[Verdict]) -> float | None:
    return round(min(v.difference for v in verdicts), 5) if verdicts else None
