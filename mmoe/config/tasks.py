"""Tasks: what is predicted, where its label comes from, on which rows it exists."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from mmoe.config.base import Name
from mmoe.config.kinds import HasKinds, Kinds
from mmoe.config.metrics import METRICS, MetricConfig
from mmoe.metrics.task_kinds import TaskKind, add_kind, kind_of, remove_kind


class TaskConfig(HasKinds):
    """One label. A row whose label is missing counts neither in the loss nor in a metric."""

    name: Name = Field(description="of the task; predictions are the column pred_NAME")
    label: str = Field(
        min_length=1, description="a column, or an expression such as watch_ms / duration_ms >= 0.9"
    )
    kind: Any = Field(
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
    metrics: list[MetricConfig] = Field(
        default_factory=list,
        description="metrics beside those of the kind, each at most once: ndcg and recall, by "
        "group, and those of your own",
    )

    @property
    def monitored(self) -> list[str]:
        """Names of its metrics that can choose the best checkpoint."""
        return [*kind_of(self.kind).monitored, *(metric.kind for metric in self.metrics)]

    @model_validator(mode="after")
    def _only_binary_labels_have_negatives(self) -> "TaskConfig":
        if not kind_of(self.kind).is_event and self.negative_sampling_rate != 1:
            raise ValueError(
                f"task {self.name!r}: negative_sampling_rate is {self.negative_sampling_rate}, but "
                f"a {self.kind} label has no negatives; remove it"
            )
        return self

    @model_validator(mode="after")
    def _metrics_fit_the_task(self) -> "TaskConfig":
        names = [metric.kind for metric in self.metrics]
        for metric in self.metrics:
            if names.count(metric.kind) > 1:
                raise ValueError(f"metrics names {metric.kind!r} twice; remove one of them")
            if METRICS.implementation(metric).of_events and not kind_of(self.kind).is_event:
                raise ValueError(
                    f"metrics: {metric.kind} judges probabilities, but the task is of kind "
                    f"{self.kind}; remove it"
                )
        return self

    def check_among(self, tasks: Sequence["TaskConfig"]) -> None:
        """Refuses tasks of a run, this one among them, that it does not go with.

        Raises:
            ValueError: One is missing, or is of another kind than this one needs.
        """


class BinaryTask(TaskConfig):
    """What happens or not: 0 or 1."""

    kind: Literal["binary"] = "binary"


class RegressionTask(TaskConfig):
    """A number."""

    kind: Literal["regression"] = "regression"


class EntireSpaceTask(TaskConfig):
    """What happens only after an event, learnt from rows without that event too (ESMM).

    0 or 1; the event is the binary task that observed_when names.
    """

    kind: Literal["entire_space"] = "entire_space"

    def check_among(self, tasks: Sequence[TaskConfig]) -> None:
        """Refuses tasks without its event, and sampled negatives of its own.

        Raises:
            ValueError: `observed_when` names no binary task, or negatives are sampled.
        """
        events = [task.name for task in tasks if isinstance(task, BinaryTask)]
        if self.observed_when not in events:
            raise ValueError(
                f"task {self.name!r}: kind is entire_space, which needs `observed_when:` the "
                f"name of a binary task, its event (click, then purchase); got "
                f"{self.observed_when!r}, binary: {', '.join(events) or 'none'}"
            )
        refuse_sampled(self, "kind entire_space", self.observed_when)


class _Tasks(Kinds[TaskConfig]):
    """Each is trained by an `Objective` (torch) and judged by the `TaskKind` in `KINDS` (NumPy)."""

    def add(
        self,
        kind: str,
        config_class: type[TaskConfig],
        implementation: Any,
        judge: TaskKind | None = None,
    ) -> None:
        """Makes a kind known, with a judge that is not in `KINDS` yet.

        Raises:
            ValueError: There is such a kind, the class is not one of this name, or the judge turns
                a metric round.
        """
        super().add(kind, config_class, implementation)
        try:
            if judge is not None:
                add_kind(kind, judge)
        except Exception:  # whatever is wrong with the judge, it is mended and added once more
            super().remove(kind)
            raise

    def remove(self, kind: str) -> None:
        """Forgets a kind, and its judge."""
        super().remove(kind)
        remove_kind(kind)


TASKS = _Tasks("task", TaskConfig, default="binary")
TASKS.add("binary", BinaryTask, "mmoe.tasks.kinds.binary:Binary")
TASKS.add("regression", RegressionTask, "mmoe.tasks.kinds.regression:Regression")
TASKS.add("entire_space", EntireSpaceTask, "mmoe.tasks.kinds.entire_space:EntireSpace")


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
