"""Alarms: a task that one column alone ranks better, experts that add nothing to a wide part."""

from collections.abc import Iterable, Mapping
from typing import Any

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
