"""Transfers: how a task's tower learns from those of the tasks that it comes after.

A kind is a class with its own keys, and a line in `TRANSFERS`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from mmoe.config.gates import Width
from mmoe.config.kinds import HasKinds, Kinds
from mmoe.config.tasks.base import TaskConfig
from mmoe.config.tasks.relations import ordered_pairs

# Of Xi et al. (KDD 2021), section 4.1.4
_CALIBRATOR_WEIGHT = 0.6


class TransferConfig(HasKinds):
    """What towers pass on, from a task to those that come after it."""

    title: ClassVar[str] = ""  # what a report calls it; none: it says nothing
    reads_hidden: ClassVar[bool] = False  # whether towers need a hidden layer that others can read

    kind: Any = Field(description="what a task reads of those that its after names")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    def calibrator(self, tasks: Sequence[TaskConfig]) -> tuple[float, list[tuple[int, int]]]:
        """Returns the weight of the calibrator, and the pairs of tasks, former and later."""
        return 0.0, []

    def check_tasks(self, tasks: Sequence[TaskConfig]) -> None:
        """Refuses tasks none of which comes after another.

        Raises:
            ValueError: Nothing would be transferred, or a key has no effect.
        """
        if self.kind != "none" and not any(task.after for task in tasks):
            raise ValueError(
                f"model.transfer is {self.kind}, but no task says which one it comes after, so "
                "nothing would be transferred; add `after:` to a task (such as after: click), or "
                "set transfer: none"
            )


class NoTransfer(TransferConfig):
    """Nothing: each tower reads its own mix of experts."""

    kind: Literal["none"] = "none"


class AdaptiveTransferConfig(TransferConfig):
    """Attention over a task's own mix and what those before it pass on (AITM).

    It stands between the mixture and the towers, of whatever kind these are.
    """

    title: ClassVar[str] = "AITM"
    kind: Literal["aitm"] = "aitm"
    dim: Width = Field(default=32, description="width of the attention's queries and keys")
    calibrator_weight: float | None = Field(
        default=None,
        ge=0,
        description="of the loss max(p − p of the task before, 0), over rows where the label is "
        "observed; for binary tasks that are 0, not empty, where the one before did not happen. "
        "null: 0.6 where there are two such tasks",
    )

    def calibrator(self, tasks: Sequence[TaskConfig]) -> tuple[float, list[tuple[int, int]]]:
        """Returns the weight of the calibrator, and the pairs of tasks, former and later."""
        asked = self.calibrator_weight
        weight = _CALIBRATOR_WEIGHT if asked is None else asked
        return weight, list(ordered_pairs(tasks)) if weight else []

    def check_tasks(self, tasks: Sequence[TaskConfig]) -> None:
        """Refuses tasks none of which comes after another, and a calibrator of nothing.

        Raises:
            ValueError: Nothing would be transferred, or `calibrator_weight` has no effect.
        """
        super().check_tasks(tasks)
        if self.calibrator_weight and not self.calibrator(tasks)[1]:
            raise ValueError(
                f"model.transfer.calibrator_weight is {self.calibrator_weight:g}, but it compares "
                "binary tasks of which one comes after the other and both are observed on the "
                "same rows, and there are none (a task that is observed_when another happened is "
                "below it as it is); remove it"
            )


class BayesianTransferConfig(TransferConfig):
    """Each tower's last hidden layer reads those of the tasks before: P(y | x, those) (DBMTL)."""

    title: ClassVar[str] = "DBMTL"
    reads_hidden: ClassVar[bool] = True
    kind: Literal["dbmtl"] = "dbmtl"


# Config class → what puts it into a network, called as `mmoe.models.relations.relate_tasks` does
TRANSFERS = Kinds("transfer", TransferConfig, default="none")
TRANSFERS.add("none", NoTransfer, "mmoe.models.relations:no_transfer")
TRANSFERS.add("aitm", AdaptiveTransferConfig, "mmoe.models.relations:adaptive_transfer")
TRANSFERS.add("dbmtl", BayesianTransferConfig, "mmoe.models.relations:bayesian_transfer")
