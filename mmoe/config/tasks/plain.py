"""Tasks that no other task takes part in: an event, a number."""

from typing import Literal

from mmoe.config.tasks.base import TaskConfig


class BinaryTask(TaskConfig):
    """What happens or not: 0 or 1; a row without a label counts in no loss and no metric."""

    kind: Literal["binary"] = "binary"


class RegressionTask(TaskConfig):
    """A number."""

    kind: Literal["regression"] = "regression"
