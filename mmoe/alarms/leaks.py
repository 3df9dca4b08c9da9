"""Alarm: a column that predicts a label too well, as one that is known only afterwards does."""

from collections.abc import Iterable, Sequence

import numpy as np

from mmoe.alarms.alarm import Alarm
from mmoe.alarms.column import Column
from mmoe.metrics.one_column import (
    SURE,
    TOO_GOOD,
    auc_by_order,
    auc_by_rates,
    enough_to_tell,
    implies_label,
    same_order,
)

# Of a regression: the same order but for ties, as `mmoe init` asks
_SAME_ORDER = 0.999
_FEWEST_NUMBERS = 20
# A value per row or nearly so: rates of the other half say nothing, and cost a sort
_MANY_VALUES = 0.5

_MEND = (
    "is it known before the event? If not, remove the feature: the model cannot have it when it "
    "scores"
)


def leaks_in(
    columns: Iterable[Column],
    labels_NT: np.ndarray,
    observed_NT: np.ndarray,
    tasks: Sequence[tuple[str, bool]],
    half_N: np.ndarray,
) -> list[Alarm]:
    """Finds columns that alone predict a label with an AUC above `TOO_GOOD`, or imply it.

    Args:
        columns: Of N rows; lists are not looked at.
        labels_NT: Labels.
        observed_NT: Where they are.
        tasks: Name of each, and whether its labels are 0 and 1.
        half_N: Two halves of the rows, bool.
    """
    found = []
    for column in columns:
        if column.kind == "list":
            continue
        coded, reasons = column.coded, []
        for t, (task, is_event) in enumerate(tasks):
            rows = np.flatnonzero(observed_NT[:, t])
            labels_N = labels_NT[rows, t].astype(np.float64)
            of_task = (
                _of_event(column, coded, labels_N, rows, half_N, task)
                if is_event
                else _of_number(column, labels_N, rows, task)
            )
            reasons += [] if of_task is None else [of_task]
        if reasons:  # one line a column, of the label that it tells best
            finding = f"column {column.name} {max(reasons)[1]}"
            found.append(Alarm(kind="leak", about=column.name, finding=finding, mend=_MEND))
    return found


_Reason = tuple[float, str] | None  # how well it tells the label, and the words


def _of_event(
    column: Column,
    coded: tuple[np.ndarray, int],
    labels_N: np.ndarray,
    rows: np.ndarray,
    half_N: np.ndarray,
    task: str,
) -> _Reason:
    codes_N, size = coded[0][rows], coded[1]
    positives = int(labels_N.sum())
    if enough_to_tell(positives, len(labels_N) - positives, TOO_GOOD, SURE):
        values = [auc_by_order((codes_N > 0).astype(np.int64), 2, labels_N)]
        if column.kind == "number":
            values.append(auc_by_order(codes_N, size, labels_N))
        if size <= _MANY_VALUES * len(rows):
            values.append(auc_by_rates(codes_N, size, labels_N, half_N[rows]))
        best = max(max(value, 1 - value) for value in values)
        if best > TOO_GOOD:
            return best, f"alone predicts {task} with an AUC of {best:.4f}"
    if column.zero is None:
        return None
    items_N = column.items[rows]
    nonzero_N = ~column.missing[rows] & (items_N != np.float32(column.zero))
    if column.at_zero is not None:
        nonzero_N &= items_N != 0  # it may be missing
    if not implies_label(nonzero_N, labels_N):
        return None
    return 0.5, f"is not 0 in {int(nonzero_N.sum()):,} rows, and {task} is 1 in every one of them"


def _of_number(column: Column, labels_N: np.ndarray, rows: np.ndarray, task: str) -> _Reason:
    if column.kind != "number":
        return None
    there = ~column.missing[rows]
    if there.sum() < _FEWEST_NUMBERS:
        return None
    order = abs(same_order(column.items[rows][there], labels_N[there]))
    if order <= _SAME_ORDER:
        return None
    return order, f"orders the rows as the label of {task} does"
