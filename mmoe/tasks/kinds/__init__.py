"""Task kinds in torch: losses and links. `mmoe.metrics.task_kinds` has their labels and metrics."""

from mmoe.tasks.kinds.base import LossRows, Objective, OneLogit, objective_of

__all__ = ["LossRows", "Objective", "OneLogit", "objective_of"]
