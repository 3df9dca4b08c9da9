"""Tasks: what is predicted, where its label comes from, on which rows it exists."""

from typing import Literal

from pydantic import Field, model_validator

from mmoe.config.base import Strict
from mmoe.config.features import Name


class TaskConfig(Strict):
    """One label. A row whose label is missing counts neither in the loss nor in a metric."""

    name: Name = Field(description="of the task; predictions are the column pred_NAME")
    label: str = Field(
        min_length=1, description="a column, or an expression such as watch_ms / duration_ms >= 0.9"
    )
    kind: Literal["binary", "regression"] = Field(
        default="binary",
        description="binary: 0 or 1, a probability is predicted; regression: any number",
    )
    weight: float = Field(default=1.0, ge=0, description="of this task's loss in the sum")
    weight_column: str | None = Field(
        default=None, description="column of non-negative row weights"
    )
    observed_when: str | None = Field(
        default=None,
        description="another task, a column or an expression; the label exists where it is true",
    )
    negative_sampling_rate: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of this label's negative rows that the log kept, picked at random; "
        "probabilities and metrics are then those of the full log. A task observed only where this "
        "label is positive needs none",
    )

    @model_validator(mode="after")
    def _only_binary_labels_have_negatives(self) -> "TaskConfig":
        if self.kind != "binary" and self.negative_sampling_rate != 1:
            raise ValueError(
                f"task {self.name!r}: negative_sampling_rate is {self.negative_sampling_rate}, but "
                f"a {self.kind} label has no negatives; remove it"
            )
        return self
