"""Tasks: what is predicted, where its label comes from, on which rows it exists."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mmoe.config.base import Name
from mmoe.config.kinds import HasKinds
from mmoe.config.label_times import Window
from mmoe.config.metrics import METRICS, MetricConfig
from mmoe.metrics.columns import WITH_BIAS
from mmoe.metrics.task_kinds import kind_of

# Kinds whose loss is linear in the label, so that it may be the unbiased one of a young row
_WEIGHABLE = ("binary", "entire_space")


class TaskConfig(HasKinds):
    """One label. A row whose label is missing counts neither in the loss nor in a metric."""

    name: Name = Field(description="of the task; predictions are the column pred_NAME")
    label: str = Field(
        min_length=1, description="a column, or an expression such as watch_ms / duration_ms >= 0.9"
    )
    kind: Any = Field(
        default="binary",
        description="binary: 0 or 1; regression: a number; entire_space: 0 or 1, of what happens "
        "only after a binary task, which after (or observed_when) names, trained on rows without "
        "that event too (ESMM); huber: a number with outliers; watch_time: seconds, 0 where "
        "nothing was watched; ziln: a value that is mostly 0, such as spend; multiclass: one of "
        "several classes; ordinal: levels in an order, such as ratings; d2q: seconds watched, as a "
        "quantile among videos of about the same duration; bpr, softmax: 0 or 1, scored by "
        "comparing the rows of a group (pairs, lists); jrc: likewise, and a probability",
    )
    after: list[str] = Field(
        default_factory=list,
        description="task or tasks without which this outcome does not happen (a purchase comes "
        "after a click); a name alone is a list of one. Read by model.transfer, and by kind "
        "entire_space, whose event it is",
    )
    weight: float = Field(default=1.0, ge=0, description="of this task's loss in the sum")
    weight_column: str | None = Field(
        default=None, description="column of non-negative row weights"
    )
    observed_when: str | None = Field(
        default=None,
        description="another task, a column or an expression; the label exists where it is true",
    )
    domains: list[str] | None = Field(
        default=None,
        min_length=1,
        description="values of model.domains.column where the task exists: elsewhere its label is "
        "unobserved, its prediction null, and its gate picks nothing; null: everywhere",
    )
    negative_sampling_rate: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of this label's negative rows that the log kept, picked at random; "
        "probabilities and metrics are then those of the full log. A task observed only where this "
        "label is positive needs none",
    )
    matures_after: Window | None = Field(
        default=None,
        description="how long after a row's time (data.time) its label can still change, such as "
        "36h or 7d: labels of rows that are younger at the log's end count nowhere",
    )
    immature: Literal["mask", "weight"] = Field(
        default="mask",
        description="young rows. mask: their labels count nowhere; weight: they train too, each "
        "event 1/F times, F the share of events that come so soon; in metrics as mask",
    )
    happened_at: str | None = Field(
        default=None,
        min_length=1,
        description="immature weight: column of the event's time, empty where there is none (yet); "
        "read as data.time is",
    )
    metrics: list[MetricConfig] = Field(
        default_factory=list,
        description="metrics beside those of the kind, each at most once: ndcg and recall, by "
        "group, and those of your own",
    )

    @field_validator("name")
    @classmethod
    def _name_is_no_other_word(cls, name: str) -> str:
        if name == "mean":
            raise ValueError(
                "'mean' is what training.monitor calls the mean over all tasks (mean.auc); choose "
                "another name"
            )
        return name

    @field_validator("after", mode="before")
    @classmethod
    def _a_name_is_a_list_of_one(cls, raw: Any) -> Any:
        return [raw] if isinstance(raw, str) else ([] if raw is None else raw)

    @field_validator("domains", mode="before")
    @classmethod
    def _domains_are_texts(cls, raw: Any) -> Any:
        """As the column's values are read, whatever type the file has: 3 and "3" are one domain."""
        if raw is None:
            return None
        items = list(raw) if isinstance(raw, list | tuple) else [raw]
        return list(dict.fromkeys(str(x) if isinstance(x, int | str) else x for x in items))

    @property
    def further(self) -> list[str]:
        """What it predicts beside its one number: `pred_NAME_X` for each X of these."""
        return []

    @property
    def inputs(self) -> list[str]:
        """Columns that it reads beside its label; whoever scores needs them too."""
        return []

    @property
    def outcomes(self) -> list[Any] | None:
        """The classes that its one prediction numbers from 0; None: that is a number itself."""
        return None

    @property
    def levels(self) -> list[float] | None:
        """Labels, as encoded, whose probabilities `further` are, rising; None: it has none."""
        return None

    @property
    def meaning(self) -> dict[str, Any]:
        """Keys that say what its logits mean, with their values; a warm start keeps them."""
        return {}

    @property
    def monitored(self) -> list[str]:
        """Names of its metrics that can choose the best checkpoint."""
        kind = kind_of(self.kind)
        both = [key + WITH_BIAS for key in kind.with_bias_keys if key in kind.monitored]
        return [*kind.monitored, *both, *(metric.kind for metric in self.metrics)]

    @model_validator(mode="after")
    def _only_binary_labels_have_negatives(self) -> "TaskConfig":
        if not kind_of(self.kind).is_event and self.negative_sampling_rate != 1:
            raise ValueError(
                f"task {self.name!r}: negative_sampling_rate is {self.negative_sampling_rate}, but "
                f"a {self.kind} label has no negatives; remove it"
            )
        return self

    @model_validator(mode="after")
    def _young_rows_can_be_weighted(self) -> "TaskConfig":
        refuse_unweighable(self)
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

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says why it cannot be trained on observed labels from `lowest` to `highest`, or None.

        What `mmoe.metrics.task_kinds` says of all tasks of its kind is not said again.
        """
        return None

    def check_among(self, tasks: Sequence["TaskConfig"]) -> None:
        """Refuses tasks of a run, this one among them, that it does not go with.

        Raises:
            ValueError: One is missing, or is of another kind than this one needs.
        """


def refuse_unweighable(task: TaskConfig) -> None:
    """Refuses `immature: weight` without what it needs, and its keys without it.

    Raises:
        ValueError: A key is missing, has no effect, or does not go with weights.
    """
    where = f"task {task.name!r}: "
    if task.immature == "mask":
        if task.happened_at is not None:
            raise ValueError(
                f"{where}happened_at is read for immature: weight alone; set that, or remove "
                "happened_at"
            )
        return
    if task.matures_after is None:
        raise ValueError(
            f"{where}immature is weight, but nothing says how long a label can change; set "
            "matures_after, such as 7d, or remove immature"
        )
    if task.happened_at is None:
        raise ValueError(
            f"{where}immature is weight, which learns from events' delays; set happened_at, the "
            "column of the event's time, or immature: mask"
        )
    if task.kind not in _WEIGHABLE:
        raise ValueError(
            f"{where}immature is weight, which is for events (kind {' or '.join(_WEIGHABLE)}), "
            f"but the task is of kind {task.kind}; set immature: mask"
        )
    if task.negative_sampling_rate != 1:
        raise ValueError(
            f"{where}immature is weight, which sampled negatives (negative_sampling_rate "
            f"{task.negative_sampling_rate}) do not go with, as some of them will be positives; "
            "set immature: mask"
        )


def prediction_columns(tasks: Sequence[TaskConfig]) -> list[str]:
    """Names the columns of predictions: one for each task, then what tasks predict beside it.

    Example:
        >>> prediction_columns([TaskConfig(name="click", label="click")])
        ['pred_click']
    """
    further = [f"pred_{task.name}_{name}" for task in tasks for name in task.further]
    return [*(f"pred_{task.name}" for task in tasks), *further]


def further_columns(tasks: Sequence[TaskConfig], t: int) -> slice:
    """Returns where the further predictions of task t stand among `prediction_columns`.

    Example:
        >>> further_columns([TaskConfig(name="click", label="click")], 0)
        slice(1, 1, None)
    """
    first = len(tasks) + sum(len(task.further) for task in tasks[:t])
    return slice(first, first + len(tasks[t].further))
