"""Tasks that no other task takes part in: an event, a number."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from mmoe.config.specs import LabelSpec
from mmoe.config.tasks.base import TaskConfig


class BinaryTask(TaskConfig):
    """What happens or not: 0 or 1; a row without a label counts in no loss and no metric."""

    kind: Literal["binary"] = "binary"


class NumberTask(TaskConfig):
    """Base of kinds whose label is a number in units of its own: money, seconds, degrees."""

    shifted: ClassVar[bool] = True  # `standard` centres the label; else 0 stays 0

    target: Literal["none", "standard"] = Field(
        default="standard",
        description="what the model learns of the label. standard: the label by the mean and the "
        "deviation that training rows have (watch_time, ziln: by its mean alone, never shifted); "
        "none: the label itself. Predictions, metrics and intervals are in the label's units",
    )

    @property
    def meaning(self) -> dict[str, Any]:
        """The unit of the logits."""
        return {"target": self.target}

    def scaling(self, label: LabelSpec) -> tuple[float, float]:
        """Returns what is subtracted from a label, and what it is then divided by.

        Args:
            label: Statistics of the label itself.

        Returns:
            Mean and deviation, or 0 and the mean; what cannot be a scale is left out.
        """
        if self.target == "none":
            return 0.0, 1.0
        return (label.mean, label.deviation or 1.0) if self.shifted else (0.0, label.mean or 1.0)


class RegressionTask(NumberTask):
    """A number."""

    kind: Literal["regression"] = "regression"
