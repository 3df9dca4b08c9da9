"""Task kinds, as far as NumPy goes: labels, metrics, columns. `mmoe.tasks.kinds` trains them."""

from collections.abc import Iterable, Mapping
from typing import Any

from mmoe.metrics.task_kinds.base import TaskKind
from mmoe.metrics.task_kinds.binary import Binary, EntireSpace, Jrc, Ranked
from mmoe.metrics.task_kinds.levels import Multiclass, Ordinal
from mmoe.metrics.task_kinds.regression import D2Q, Huber, Regression, WatchTime, Ziln

KindName = str  # a key of KINDS

KINDS: dict[str, TaskKind] = {}

# Metric → its direction, of all metrics that can choose the best checkpoint
HIGHER_IS_BETTER: dict[str, bool] = {}


def add_kind(name: str, kind: TaskKind) -> None:
    """Makes a kind of task known, and the metrics by which it can choose the best checkpoint.

    How it is trained is added to `mmoe.config.TASKS` under the same name.

    Args:
        name: As a config says it under `kind`.
        kind: Judges such tasks.

    Raises:
        ValueError: There is such a kind, or a metric of its has another direction there.
    """
    if name in KINDS:
        raise ValueError(f"task kind {name!r}: there is such a kind; choose another name")
    for metric, higher in kind.monitored.items():
        if HIGHER_IS_BETTER.get(metric, higher) != higher:
            raise ValueError(
                f"task kind {name!r}: {metric} is better when it is "
                f"{'lower' if higher else 'higher'} in other kinds; give it another name"
            )
    KINDS[name] = kind
    HIGHER_IS_BETTER.update(kind.monitored)


def remove_kind(name: str) -> None:
    """Forgets a kind of task, and the direction of metrics that no other kind has."""
    monitored = KINDS.pop(name).monitored
    for metric in monitored:
        if not any(metric in other.monitored for other in KINDS.values()):
            HIGHER_IS_BETTER.pop(metric, None)


add_kind("binary", Binary())
add_kind("regression", Regression())
add_kind("entire_space", EntireSpace())
add_kind("huber", Huber())
add_kind("watch_time", WatchTime())
add_kind("ziln", Ziln())
add_kind("multiclass", Multiclass())
add_kind("ordinal", Ordinal())
add_kind("d2q", D2Q())
add_kind("bpr", Ranked())
add_kind("softmax", Ranked())
add_kind("jrc", Jrc())


def kind_of(name: str, task: str = "task") -> TaskKind:
    """Returns the task kind of a name in a config.

    Args:
        name: `kind` of a task.
        task: Whose it is, for the refusal.

    Raises:
        ValueError: There is no such kind.

    Example:
        >>> kind_of("regression").headline
        'rmse'
    """
    if name not in KINDS:
        *others, last = KINDS
        raise ValueError(f"task {task!r}: kind is {name!r}; expected {', '.join(others)} or {last}")
    return KINDS[name]


def kind_of_metrics(values: Mapping[str, Any]) -> TaskKind:
    """Returns the kind of a task with these metrics, by their names.

    Example:
        >>> kind_of_metrics({"rmse": 0.5, "rows": 10}).headline
        'rmse'
    """
    return max(KINDS.values(), key=lambda kind: len(kind.keys & values.keys()))


def first_of(names: Iterable[str]) -> TaskKind:
    """Returns of several tasks' kinds the one that speaks for all: the registry's first.

    Example:
        >>> first_of(["regression", "binary"]).headline
        'auc'
    """
    there = set(names)
    return next(kind for name, kind in KINDS.items() if name in there)
