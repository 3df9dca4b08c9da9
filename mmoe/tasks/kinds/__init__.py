"""Task kinds in torch: losses and links. `mmoe.metrics.task_kinds` has their labels and metrics."""

from functools import cache

from mmoe.config.tasks import TASKS
from mmoe.tasks.kinds.base import Objective, OneLogit

__all__ = ["Objective", "OneLogit", "objective_of"]


def objective_of(kind: str) -> Objective:
    """Returns how tasks of a kind are trained.

    Example:
        >>> from mmoe.tasks.kinds import objective_of
        >>> type(objective_of("regression")).__name__
        'Regression'
    """
    return _one(TASKS.implementation(kind))


@cache
def _one(objective: type[Objective]) -> Objective:
    return objective()
