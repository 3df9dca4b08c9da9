"""Task kinds in torch: losses and links. `mmoe.metrics.task_kinds` has their labels and metrics."""

from mmoe.tasks.kinds.base import Objective, OneLogit, objective_of

__all__ = ["Objective", "OneLogit", "objective_of"]
