"""`EntireSpaceTask`: what happens only after an event (ESMM, ESCM²)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from mmoe.config.tasks.base import TaskConfig
from mmoe.config.tasks.plain import BinaryTask


class EntireSpaceTask(TaskConfig):
    """What happens only after an event, learnt from rows without that event too (ESMM).

    0 or 1; the event is the binary task that after names, or observed_when.
    """

    kind: Literal["entire_space"] = "entire_space"
    counterfactual: Literal["ips", "dr"] | None = Field(
        default=None,
        description="add a loss of the conditional probability alone, over rows with the event, "
        "each for as many as were like it (ESCM²). ips: weighed by 1 / P(event); dr: that, and a "
        "tower that imputes the loss of the other rows",
    )
    counterfactual_weight: float = Field(
        default=0.1, gt=0, description="of that loss, beside ESMM's, whose weight is 1"
    )
    propensity_floor: float = Field(
        default=0.05, gt=0, le=1, description="P(event) counts as this where it is smaller"
    )

    @property
    def title(self) -> str:
        """What a report calls the way it is trained."""
        return "ESMM" if self.counterfactual is None else f"ESCM²-{self.counterfactual.upper()}"

    @model_validator(mode="before")
    @classmethod
    def _after_names_the_event(cls, raw: Any) -> Any:
        """What comes after one task is observed when that happened."""
        if not isinstance(raw, Mapping) or raw.get("observed_when") is not None:
            return raw
        after = raw.get("after")
        names = [after] if isinstance(after, str) else after
        if not isinstance(names, list | tuple) or len(names) != 1:
            return raw
        return {**raw, "observed_when": names[0]}

    @model_validator(mode="after")
    def _one_event(self) -> "EntireSpaceTask":
        if self.after and self.observed_when is None:
            raise ValueError(
                f"after names {', '.join(self.after)}, but kind entire_space has one event; say "
                "which: observed_when"
            )
        if self.after and self.observed_when not in self.after:
            raise ValueError(
                f"after says {', '.join(self.after)} and observed_when says {self.observed_when}, "
                "but kind entire_space has one event; remove observed_when, or make them agree"
            )
        return self

    @model_validator(mode="after")
    def _counterfactual_keys_have_effect(self) -> "EntireSpaceTask":
        for key in ("counterfactual_weight", "propensity_floor"):
            default = type(self).model_fields[key].default
            if self.counterfactual is None and getattr(self, key) != default:
                raise ValueError(
                    f"{key} is {getattr(self, key)}, which has no effect without counterfactual; "
                    "set counterfactual: ips or dr, or remove it"
                )
        return self

    def check_among(self, tasks: Sequence[TaskConfig]) -> None:
        """Refuses tasks without its event, and sampled negatives of its own.

        Raises:
            ValueError: The event is no binary task, or negatives are sampled.
        """
        events = [task.name for task in tasks if isinstance(task, BinaryTask)]
        if self.observed_when not in events:
            raise ValueError(
                f"task {self.name!r}: kind is entire_space, which needs `observed_when:` "
                f"or `after:` the name of a binary task, its event (click, then purchase); "
                f"got {self.observed_when!r}, binary: {', '.join(events) or 'none'}"
            )
        refuse_sampled(self, "kind entire_space", self.observed_when)


def refuse_sampled(task: TaskConfig, what: str, event: str) -> None:
    """Refuses sampled negatives of a task that is learnt over all rows of its event.

    Rows with the event would be missing with the negatives, and P(event) be wrong.

    Args:
        task: The consequence.
        what: What learns it so, for the error.
        event: Name of its event.
    """
    if task.negative_sampling_rate != 1:
        raise ValueError(
            f"task {task.name!r}: negative_sampling_rate is {task.negative_sampling_rate}, which "
            f"{what} cannot correct; only negatives of {event!r} may be sampled (its product then "
            "needs no rate of its own)"
        )


def entire_space_tasks(tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
    """Returns two binary tasks as ESMM trains them: the second of kind entire_space.

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
