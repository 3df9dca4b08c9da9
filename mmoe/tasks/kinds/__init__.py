"""Task kinds in torch: losses and links. `mmoe.metrics.kinds` has their labels and metrics."""

from mmoe.tasks.kinds.base import Objective
from mmoe.tasks.kinds.binary import Binary
from mmoe.tasks.kinds.entire_space import EntireSpace
from mmoe.tasks.kinds.regression import Regression

__all__ = ["OBJECTIVES", "Objective"]

OBJECTIVES: dict[str, Objective] = {
    "binary": Binary(),
    "regression": Regression(),
    "entire_space": EntireSpace(),
}
