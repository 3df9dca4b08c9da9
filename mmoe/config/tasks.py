"""Tasks: what is predicted, where its label comes from, on which rows it exists."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from mmoe.config.base import Strict
from mmoe.config.features import Name
from mmoe.config.kinds import OneOf
from mmoe.metrics.kinds import KINDS, kind_of


class TaskConfig(Strict):
    """One label. A row whose label is missing counts neither in the loss nor in a metric."""

    name: Name = Field(description="of the task; predictions are the column pred_NAME")
    label: str = Field(
        min_length=1, description="a column, or an expression such as watch_ms / duration_ms >= 0.9"
    )
    kind: Annotated[str, OneOf(lambda: KINDS)] = Field(
        default="binary",
        description="binary: 0 or 1; regression: a number; entire_space: 0 or 1, of what happens "
        "only after the binary task that observed_when names, trained on rows without that event "
        "too (ESMM)",
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
        if not kind_of(self.kind).is_event and self.negative_sampling_rate != 1:
            raise ValueError(
                f"task {self.name!r}: negative_sampling_rate is {self.negative_sampling_rate}, but "
                f"a {self.kind} label has no negatives; remove it"
            )
        return self


def entire_space_tasks(tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
    """Two binary tasks as ESMM trains them: the second is of kind entire_space, after the first.

    Raises:
        ValueError: Not two binary tasks.

    Example:
        >>> click, buy = (TaskConfig(name=name, label=name) for name in ("click", "buy"))
        >>> [(task.kind, task.observed_when) for task in entire_space_tasks([click, buy])]
        [('binary', None), ('entire_space', 'click')]
    """
    if len(tasks) != 2 or any(task.kind != "binary" for task in tasks):
        came = ", ".join(f"{task.name} ({task.kind})" for task in tasks)
        raise ValueError(
            "tasks: esmm needs two binary tasks, an event and its consequence (such as click, "
            f"purchase), got {came}"
        )
    event, consequence = tasks
    trained = {"kind": "entire_space", "observed_when": event.name}
    return [event, consequence.model_copy(update=trained)]
