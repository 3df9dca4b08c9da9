"""Alarms about tasks: exploded losses, wrong levels, equal predictions, no gain over less."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import gammainccinv, gammaincinv

from mmoe.alarms.alarm import Alarm
from mmoe.alarms.columns import Column, StoredColumn, TrainingColumns
from mmoe.errors import WHAT_TO_CHANGE
from mmoe.metrics import auc, auc_difference_interval
from mmoe.metrics.one_column import auc_of_counts, mid_ranks

_FEWEST_ROWS = 100  # of which a metric is no accident
# A first epoch that overshoots and comes back has had up to six times that loss (log-loss of 4.3
# beside a factorization machine); ones that have ruined the weights 140 to 700 times
TIMES = 10.0


def exploded_losses(
    losses: Mapping[str, float | None], of_mean: Mapping[str, float]
) -> dict[str, float]:
    """Returns the tasks whose loss is over ten times that of predicting their mean, and how often.

    Args:
        losses: Task → mean training loss of an epoch; None: no row had its label.
        of_mean: Task → the loss of one number for all rows; tasks that are not there have none.

    Example:
        >>> exploded_losses({"click": 0.4, "price": 138.0}, {"click": 0.5, "price": 1.0})
        {'price': 138.0}
    """
    found = {}
    for task, loss in losses.items():
        base = of_mean.get(task, 0.0)
        if loss is not None and base > 0 and not loss <= TIMES * base:
            found[task] = loss / base
    return found


def alarm_of_explosion(history: list[dict[str, Any]]) -> list[Alarm]:
    """Raises the alarm of an epoch after which training stopped, since its losses had exploded.

    Args:
        history: Entries of the run's epochs; the last one has `exploded` where that was.
    """
    exploded = history[-1].get("exploded") if history else None
    if not exploded:
        return []
    task, times = max(exploded.items(), key=lambda item: item[1])
    kept = next((entry["epoch"] for entry in history if entry["best"]), None)
    weights = "before the first epoch" if kept == 0 else f"after epoch {kept}"
    finding = (
        f"training stopped after epoch {history[-1]['epoch']}, whose loss of {task} was "
        f"{times:,.0f} times that of predicting the mean; the weights are those {weights}"
    )
    mend = WHAT_TO_CHANGE + "; or model.interaction: none, where there is one"
    return [Alarm(kind="exploded", about=", ".join(exploded), finding=finding, mend=mend)]


# A model off by less still says something; half or twice as many is a level that nobody trained
_LOWEST, _HIGHEST = 0.5, 2.0
_BESIDE = 0.005  # on either side of the 99 % interval of a count
_FEWEST_POSITIVES = 20  # of which NE is none

_MEND_WORSE = (
    "the model is worse than a constant: train longer or with a lower learning rate, and look for "
    "rows that differ from training"
)


def wrong_level(
    metrics: Mapping[str, Mapping[str, Any]], deviations: Mapping[str, float]
) -> list[Alarm]:
    """Finds tasks whose predictions are too high, too low, or worse than one number for all rows.

    Args:
        metrics: Task → its metrics.
        deviations: Task with labels that are numbers → the deviation of the labels.

    Example:
        >>> metrics = {"buy": {"calibration": 7.2, "ne": 1.5, "rows": 20_000, "positives": 100}}
        >>> [alarm.kind for alarm in wrong_level(metrics, {})]
        ['calibration', 'worse_than_mean']
    """
    found = []
    for task, values in metrics.items():
        if (values.get("rows") or 0) < _FEWEST_ROWS:
            continue
        positives, ratio, ne = (values.get(key) for key in ("positives", "calibration", "ne"))
        if positives and ratio is not None and _is_off(ratio, positives):
            found.append(_calibration(task, ratio, positives))
        if ne is not None and ne > 1 and positives and positives >= _FEWEST_POSITIVES:
            finding = (
                f"{task}: NE is {ne:.4f}; above 1 a constant, the rate of positives, is better"
            )
            found.append(
                Alarm(kind="worse_than_mean", about=task, finding=finding, mend=_MEND_WORSE)
            )
        rmse, deviation = values.get("rmse"), deviations.get(task, 0.0)
        if rmse is not None and deviation > 0 and rmse > deviation:
            finding = f"{task}: RMSE {rmse:.4g} is above the label's deviation {deviation:.4g}"
            found.append(
                Alarm(kind="worse_than_mean", about=task, finding=finding, mend=_MEND_WORSE)
            )
    return found


def label_deviation(labels_N: np.ndarray, weights_N: np.ndarray) -> float:
    """Returns the weighted deviation of labels; 0 where none counts.

    Args:
        labels_N: Of a task, read as float64.
        weights_N: 0 or more; rows without a label have 0.

    Example:
        >>> label_deviation(np.array([1.0, 3.0]), np.ones(2))
        1.0
    """
    if not weights_N.sum() > 0:
        return 0.0
    labels_N = labels_N.astype(np.float64)
    mean = np.average(labels_N, weights=weights_N)
    return math.sqrt(np.average((labels_N - mean) ** 2, weights=weights_N))


def _is_off(ratio: float, positives: int) -> bool:
    """Whether a ratio lies beyond the bounds, and beyond the interval of a Poisson count."""
    low, high = gammaincinv(positives, _BESIDE), gammainccinv(positives + 1, _BESIDE)
    return not _LOWEST <= ratio <= _HIGHEST and not low <= ratio * positives <= high


def _calibration(task: str, ratio: float, positives: int) -> Alarm:
    much = f"{ratio:.3g} times" if ratio > 1 else f"only {ratio:.3g} of"
    return Alarm(
        kind="calibration",
        about=task,
        finding=f"{task}: predictions add up to {much} the {positives:,} positives",
        mend="say negative_sampling_rate where the log kept a share of the negatives, train "
        "longer, or train on rows like these",
    )


# Spearman's correlation: a row then has about the same place in both orders, off by some 1 % of the
# rows (√((1 − ρ) / 6)). Tasks that share much (logits correlated by 0.99) stay at 0.99.
_SAME_ORDER = 0.999
# Labels that differ in fewer of the rows that have both, and in which one of them is 1, are copies;
# then less will do, since towers of their own never end quite alike
_COPIES = 0.01
_ORDER_OF_COPIES = 0.95
_FEWEST_LABELS = 20
# Of the mean prediction: less is rounding
_CONSTANT = 1e-5


def same_predictions(
    predictions_NT: np.ndarray,
    labels_NT: np.ndarray,
    observed_NT: np.ndarray,
    tasks: Sequence[tuple[str, bool]],
    left_at_mean: Collection[str] = (),
) -> list[Alarm]:
    """Finds pairs of tasks that order the rows alike, and tasks that order none.

    Args:
        predictions_NT: For N rows.
        labels_NT: Their labels.
        observed_NT: Where these are.
        tasks: Name of each, and whether its labels are 0 and 1: only such tasks are compared, and
            only others with others.
        left_at_mean: Names of those that the wide part leaves there.
    """
    if len(predictions_NT) < _FEWEST_ROWS:
        return []
    spread_T = np.ptp(predictions_NT, axis=0)
    moves_T = spread_T > _CONSTANT * np.abs(predictions_NT).mean(axis=0)
    found = [
        _constant(tasks[t][0], float(predictions_NT[:, t].mean()), tasks[t][0] in left_at_mean)
        for t in range(len(tasks))
        if not moves_T[t]
    ]
    ranks = {t: mid_ranks(predictions_NT[:, t]) for t in range(len(tasks)) if moves_T[t]}
    for a, b in combinations(ranks, 2):
        if tasks[a][1] != tasks[b][1]:
            continue
        order = float(np.corrcoef(ranks[a], ranks[b])[0, 1])
        unlike = _unlike(a, b, labels_NT, observed_NT, is_event=tasks[a][1])
        copies = unlike is not None and unlike < _COPIES
        if order > (_ORDER_OF_COPIES if copies else _SAME_ORDER):
            found.append(_same(tasks[a][0], tasks[b][0], order, unlike, copies=copies))
    return found


def _constant(task: str, value: float, left_at_mean: bool) -> Alarm:
    mend = (
        "its tower is dead or was not trained: a lower learning rate or less weight decay; "
        "compare with the task alone (model.kind: single_task)"
    )
    if left_at_mean:
        mend = (
            "no column predicts so few positives: train on more of them, drop the task, or set "
            "model.wide: false, and the network learns from them whatever there is"
        )
    return Alarm(
        kind="constant_predictions",
        about=task,
        finding=f"{task}: every row gets the prediction {value:.4g}",
        mend=mend,
    )


def _unlike(
    a: int, b: int, labels_NT: np.ndarray, observed_NT: np.ndarray, *, is_event: bool
) -> float | None:
    """Share of the rows with both labels (one of them 1, if 0 and 1) in which they differ."""
    rows_N = observed_NT[:, a] & observed_NT[:, b]
    if is_event:
        rows_N &= (labels_NT[:, a] > 0.5) | (labels_NT[:, b] > 0.5)
    if rows_N.sum() < _FEWEST_LABELS:
        return None
    return float((labels_NT[rows_N, a] != labels_NT[rows_N, b]).mean())


def _same(one: str, other: str, order: float, unlike: float | None, *, copies: bool) -> Alarm:
    finding = f"{one} and {other} put the rows in the same order (rank correlation {order:.4f})"
    if copies:
        finding += ", and their labels are the same"
        mend = "one label is the other's copy: check the columns, or drop one of the tasks"
    else:
        if unlike is not None:
            finding += f", though {unlike:.1%} of their labels differ"
        mend = (
            "the model does not tell them apart, so one of them is not learnt: give them gates of "
            "their own (model.kind: mmoe or ple) or raise the weight of the rarer one"
        )
    return Alarm(kind="same_predictions", about=f"{one}, {other}", finding=finding, mend=mend)


# Columns that are tried, chosen by training rows: so the test rows' luck chooses none
_TRIED = 3
# Less in AUC is nothing to mend
_LEAST = 0.005
# Of the paired interval, which must lie below 0 for a column: for some dozens of tasks times _TRIED
_CONFIDENCE = 0.9999

_MEND_UNLEARNT = (
    "the model has not learnt even that: look at the learning curves (a later best epoch: train "
    "longer; an early one: less weight decay, a lower learning rate or a smaller model), and try "
    "buckets on numbers"
)


def tasks_outdone(
    training: TrainingColumns,
    columns: Iterable[Column],
    labels_NT: np.ndarray,
    observed_NT: np.ndarray,
    predictions_NT: np.ndarray,
    events: Mapping[str, int],
) -> list[Alarm]:
    """Finds tasks whose AUC is below that of one column's rates of positives in training.

    Args:
        training: The rates.
        columns: Of N rows that did not train.
        labels_NT: Their labels.
        observed_NT: Where these are.
        predictions_NT: The model's.
        events: Name of each task whose labels are 0 and 1 → its place.
    """
    known = {column.name: column for column in columns if column.name in training.columns}
    found = []
    for task, t in events.items():
        rows = observed_NT[:, t]
        labels_N, scores_N = labels_NT[rows, t], predictions_NT[rows, t]
        model = auc(labels_N, scores_N)
        positives = int((labels_N > 0.5).sum())
        if model is None or min(positives, len(labels_N) - positives) < 2:
            continue
        for name in _best(training, known, task):
            stored = training.columns[name]
            column_N = stored.rates(task)[stored.codes(known[name])[rows]]
            alone = auc(labels_N, column_N)
            if alone is None or alone - model < _LEAST:
                continue
            interval = auc_difference_interval(labels_N, column_N, scores_N, _CONFIDENCE)
            if interval.low > 0:
                finding = (
                    f"{task}: column {name} alone ranks these rows with an AUC of {alone:.4f}, the "
                    f"model with {model:.4f}"
                )
                found.append(
                    Alarm(kind="outdone", about=task, finding=finding, mend=_MEND_UNLEARNT)
                )
                break
    return found


def _best(training: TrainingColumns, known: Mapping[str, Column], task: str) -> list[str]:
    """The columns that rank the training rows best, one by one."""
    aucs = {
        name: _auc_in_training(training.columns[name], task)
        for name, column in known.items()
        if task in training.columns[name].observed and training.columns[name].kind == column.kind
    }
    return sorted((name for name, value in aucs.items() if value > 0.5), key=lambda n: -aucs[n])[
        :_TRIED
    ]


def _auc_in_training(stored: StoredColumn, task: str) -> float:
    positives, observed = np.array(stored.positives[task]), np.array(stored.observed[task])
    value = auc_of_counts(stored.rates(task), positives, observed - positives)
    return value if np.isfinite(value) else 0.5


_MEND_OF_MIXTURE = (
    "read the learning curves: ids learnt by heart show as a loss that falls while validation gets "
    "worse (min_count: auto, more weight decay), a rate that is too low as one that stays; else "
    "the wide part says all that these columns tell"
)


def adds_nothing(over_wide: Mapping[str, Any]) -> list[Alarm]:
    """Finds a mixture that was not trained, or that makes no task better beyond chance.

    Args:
        over_wide: As metrics.json has it: whether the mixture is `untrained`, and of each of
            `tasks` the gain over the wide part with its interval.
    """
    tasks, about = over_wide["tasks"], "all tasks"
    if over_wide["untrained"]:
        finding = (
            "the best weights are those before the first epoch: what is evaluated and scored is "
            "the wide part alone, and no expert is trained"
        )
    elif tasks and all(one["low"] is not None and one["low"] <= 0 for one in tasks.values()):
        gains = ", ".join(f"{name} {one['value']:+.2g}" for name, one in tasks.items())
        about = ", ".join(tasks)  # others begin with a constant: they have the mixture alone
        metrics = "/".join(dict.fromkeys(one["heading"] for one in tasks.values()))
        finding = f"the mixture adds nothing to the wide part beyond chance ({metrics}: {gains})"
    else:
        return []
    return [Alarm(kind="over_wide", about=about, finding=finding, mend=_MEND_OF_MIXTURE)]
