"""Interface of a task kind in training and scoring."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.config import TASKS, LabelSpec, TaskConfig

# exp of it is finite in fp32: a prediction that is far off stays a number
LARGEST_LOG = 88.0


class LossRows(NamedTuple):
    """Rows of a batch, as the loss of one task sees them.

    Attributes:
        logits: `logit_B` of every task, at least fp32; `logits_BK` where a task has K > 1 columns.
        label_B: The task's outcome, 0 where it is not known.
        weight_B: Of the task; 0 where its outcome is not known.
        labels_BT: Of all tasks, as they are.
        groups_B: Number of each row's group, int64, below B; no row of a group is in another batch.
            None where no task compares rows.
        imputed: `logit_B` of the imputation towers, by column, of tasks that have one.
    """

    logits: Sequence[Tensor]
    label_B: Tensor
    weight_B: Tensor
    labels_BT: Tensor
    groups_B: Tensor | None
    imputed: Mapping[int, Tensor]


class Objective(ABC):
    """A task kind's loss and predictions; its labels and metrics: `mmoe.metrics.task_kinds`."""

    def num_logits(self, task: TaskConfig) -> int:
        """Returns how many numbers a row has of the task's tower."""
        return 1

    def num_constants(self, task: TaskConfig) -> int:
        """Returns how many learnt numbers, the same for all rows, stand behind these."""
        return 0

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the logits, constants behind, at which a tower that says nothing of rows is best.

        Fewer numbers than the task has columns leave the others at 0.

        Args:
            task: The task.
            label: Statistics of its targets.
        """
        return ()

    def outcome(
        self, t: int, labels_BT: Tensor, observed_BT: Tensor, tasks: Sequence[TaskConfig]
    ) -> tuple[Tensor, Tensor] | None:
        """Returns label and mask that task t is trained on, or None: its own.

        Args:
            t: The task's column.
            labels_BT: Of all tasks.
            observed_BT: Where they exist.
            tasks: In the order of the columns.

        Returns:
            `label_B` and `observed_B`; None: column t of both.
        """
        return None

    @abstractmethod
    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes each row's loss, `loss_B`.

        Args:
            t: The task's column.
            rows: Logits of every task, the task's outcome, and what a kind may need beside them.
            tasks: In the order of the columns.
        """

    @abstractmethod
    def predictions(self, logits: Tensor, task: TaskConfig) -> Tensor:
        """Computes what a task predicts: its one number, then those of `task.further`.

        Args:
            logits: `logit_B`, or `logits_BK` of K > 1 columns; at least fp32.
            task: The task.

        Returns:
            `[B, 1 + further]`; bits of a row that depend on its logits alone.
        """


class OneLogit(Objective):
    """Base of kinds that predict one number, of one logit."""

    @abstractmethod
    def link(self, logit_B: Tensor) -> Tensor:
        """Turns logits into predictions, element by element."""

    def predictions(self, logits: Tensor, task: TaskConfig) -> Tensor:
        """Computes `link` of each row's logit, `[B, 1]`.

        Args:
            logits: One a row, [B].
            task: Of this kind.
        """
        return self.link(logits)[:, None]


def log_odds(share: float) -> float:
    """Returns `ln(p / (1 − p))` of a share, which is kept a millionth away from 0 and 1.

    Example:
        >>> log_odds(0.5), round(log_odds(0.005), 2)
        (0.0, -5.29)
    """
    share = min(max(share, 1e-6), 1 - 1e-6)
    return math.log(share / (1 - share))


def beside(first_B: Tensor, further_BK: Tensor) -> Tensor:
    """Puts a task's one number in front of its further ones.

    Example:
        >>> beside(torch.zeros(2), torch.ones(2, 3)).shape
        torch.Size([2, 4])
    """
    return torch.cat([first_B[:, None], further_BK], dim=1)


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
