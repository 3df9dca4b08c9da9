"""What every task kind answers in training and scoring."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from mmoe.config.tasks import TaskConfig


class Objective(ABC):
    """A task kind's loss and link; its labels and metrics are in `mmoe.metrics.task_kinds`."""

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
    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes each row's loss, `loss_B`.

        Args:
            t: The task's column.
            logits: `logit_B` of every task, at least fp32.
            label_B: The task's outcome, 0 where it is not known.
            tasks: In the order of the columns.
        """

    @abstractmethod
    def link(self, logits_BT: Tensor) -> Tensor:
        """Turns logits into predictions, element by element."""
