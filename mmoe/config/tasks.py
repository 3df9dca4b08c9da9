"""Tasks: what is predicted, where its label comes from, on which rows it exists."""

from typing import Literal

from pydantic import Field

from mmoe.config.base import Strict
from mmoe.config.features import Name


class TaskConfig(Strict):
    """One label. A row whose label is missing counts neither in the loss nor in a metric."""

    name: Name
    label: str = Field(
        min_length=1, description="a column, or an expression such as watch_ms / duration_ms >= 0.9"
    )
    kind: Literal["binary", "regression"] = "binary"
    weight: float = Field(default=1.0, ge=0, description="of this task's loss in the sum")
    weight_column: str | None = Field(
        default=None, description="column of non-negative row weights"
    )
    observed_when: str | None = Field(
        default=None,
        description="another task, a column or an expression; the label exists where it is true",
    )
