"""Alarm: a task that one column alone ranks better than the model."""

from collections.abc import Iterable, Mapping

import numpy as np

from mmoe.alarms.alarm import Alarm
from mmoe.alarms.column import Column
from mmoe.alarms.profile import StoredColumn, TrainingColumns
from mmoe.metrics import auc, auc_difference_interval
from mmoe.metrics.one_column import auc_of_counts

# Columns that are tried, chosen by training rows: so the test rows' luck chooses none
_TRIED = 3
# Less in AUC is nothing to mend
_LEAST = 0.005
# Of the paired interval, which must lie below 0 for a column: for some dozens of tasks times _TRIED
_CONFIDENCE = 0.9999

_MEND = (
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
                found.append(Alarm(kind="outdone", about=task, finding=finding, mend=_MEND))
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
