"""Alarm: two tasks with one order of the rows, or a task with one prediction for all."""

from collections.abc import Collection, Sequence
from itertools import combinations

import numpy as np

from mmoe.alarms.alarm import Alarm
from mmoe.metrics.one_column import mid_ranks

# Spearman's correlation: a row then has about the same place in both orders, off by some 1 % of the
# rows (√((1 − ρ) / 6)). Tasks that share much (logits correlated by 0.99) stay at 0.99.
_SAME_ORDER = 0.999
# Labels that differ in fewer of the rows that have both, and in which one of them is 1, are copies;
# then less will do, since towers of their own never end quite alike
_COPIES = 0.01
_ORDER_OF_COPIES = 0.95
_FEWEST_ROWS = 100
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
        differ = "" if unlike is None else f", though {unlike:.1%} of their labels differ"
        finding += differ
        mend = (
            "the model does not tell them apart, so one of them is not learnt: give them gates of "
            "their own (model.kind: mmoe or ple) or raise the weight of the rarer one"
        )
    return Alarm(kind="same_predictions", about=f"{one}, {other}", finding=finding, mend=mend)
