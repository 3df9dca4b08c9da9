"""Tasks and their metrics: a kind is a class with its own keys, and a line in its registry."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictInt, StrictStr, field_validator, model_validator

from mmoe.config.data import Window
from mmoe.config.kinds import HasKinds, Kinds, Name
from mmoe.config.tables import LabelSpec
from mmoe.metrics import KINDS, TaskKind, kind_of
from mmoe.metrics.columns import NAMED_COLUMNS, WITH_BIAS
from mmoe.metrics.named import Ndcg, Recall
from mmoe.metrics.task_kinds import HIGHER_IS_BETTER, add_kind, remove_kind


class MetricConfig(HasKinds):
    """A metric beside those that the task's kind always has."""

    if TYPE_CHECKING:
        kind: Any


_K = "so many rows of each group of data.group_column count: those scored best"


class NdcgConfig(MetricConfig):
    """NDCG@k by group, the mean over groups with a positive row, each counted once."""

    kind: Literal["ndcg"] = "ndcg"
    k: int = Field(default=10, ge=1, le=1_000_000, description=_K)


class RecallConfig(MetricConfig):
    """Recall@k by group, the mean over groups with a positive row, each counted once."""

    kind: Literal["recall"] = "recall"
    k: int = Field(default=10, ge=1, le=1_000_000, description=_K)


class _Metrics(Kinds[MetricConfig]):
    """Metrics by name; each is implemented by a `NamedMetric` in NumPy."""

    def add(self, kind: str, config_class: type[MetricConfig], implementation: Any) -> None:
        """Makes a metric known.

        Raises:
            ValueError: There is such a metric, or the classes are not those of one of this name.
        """
        column, higher_is_better = implementation.column, implementation.higher_is_better
        if any(kind in task_kind.keys for task_kind in KINDS.values()):
            raise ValueError(f"metric {kind!r}: a kind of task has it already; choose another name")
        if column.key != kind:
            raise ValueError(
                f"metric {kind!r}: the key of {implementation.__name__}.column is {column.key!r}; "
                "it has to be the name, under which metrics.json has the value"
            )
        super().add(kind, config_class, implementation)
        NAMED_COLUMNS[kind] = replace(column, optional=True)  # only where a task names it
        HIGHER_IS_BETTER[kind] = higher_is_better

    def remove(self, kind: str) -> None:
        """Forgets a metric."""
        super().remove(kind)
        del NAMED_COLUMNS[kind], HIGHER_IS_BETTER[kind]


METRICS = _Metrics("metric", MetricConfig)
METRICS.add("ndcg", NdcgConfig, Ndcg)
METRICS.add("recall", RecallConfig, Recall)


# Kinds whose loss is linear in the label, so that it may be the unbiased one of a young row
_WEIGHABLE = ("binary", "entire_space")


class TaskConfig(HasKinds):
    """One label. A row whose label is missing counts neither in the loss nor in a metric."""

    compares: ClassVar[bool] = False  # whether it learns from pairs of rows shown together
    means: ClassVar[tuple[str, ...]] = ()  # keys that say what its logits mean

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
        """Reads domains as text, whatever type the file has: 3 and "3" are one domain."""
        if raw is None:
            return None
        items = list(raw) if isinstance(raw, list | tuple) else [raw]
        return list(dict.fromkeys(str(x) if isinstance(x, int | str) else x for x in items))

    @property
    def further(self) -> list[str]:
        """Further predictions beside its one number: `pred_NAME_X` for each X of these."""
        return []

    @property
    def inputs(self) -> list[str]:
        """Columns that it reads beside its label; whoever scores needs them too."""
        return []

    @property
    def title(self) -> str:
        """Name of its training in a report, where its kind does not say it."""
        return ""

    @property
    def event(self) -> str | None:
        """The task by whose probability its own is multiplied; None: its logit says it alone."""
        return None

    @property
    def imputes(self) -> bool:
        """Whether a second tower of it imputes, while training, what did not come to happen."""
        return False

    @property
    def outcomes(self) -> list[Any] | None:
        """Classes that the prediction counts from 0; None where it is a number itself."""
        return None

    @property
    def levels(self) -> list[float] | None:
        """Labels, as encoded, whose probabilities `further` are, rising; None: it has none."""
        return None

    @property
    def curve(self) -> str | None:
        """How its labels may be curved, as `fit_scale` knows it; None: they stay straight."""
        return None

    @property
    def meaning(self) -> dict[str, Any]:
        """Keys that say what its logits mean, with their values; a warm start keeps them."""
        return {key: getattr(self, key) for key in self.means}

    @property
    def monitored(self) -> list[str]:
        """Names of its metrics that can choose the best checkpoint."""
        kind = kind_of(self.kind)
        both = [key + WITH_BIAS for key in kind.with_bias_keys if key in kind.monitored]
        return [*kind.monitored, *both, *(metric.kind for metric in self.metrics)]

    def _ensure_only_binary_labels_have_negatives(self) -> None:
        if not kind_of(self.kind).is_event and self.negative_sampling_rate != 1:
            raise ValueError(
                f"task {self.name!r}: negative_sampling_rate is {self.negative_sampling_rate}, but "
                f"a {self.kind} label has no negatives; remove it"
            )

    def _ensure_young_rows_can_be_weighted(self) -> None:
        """Refuses `immature: weight` without what it needs, and its keys without it."""
        where = f"task {self.name!r}: "
        if self.immature == "mask":
            if self.happened_at is not None:
                raise ValueError(
                    f"{where}happened_at is read for immature: weight alone; set that, or remove "
                    "happened_at"
                )
            return
        if self.matures_after is None:
            raise ValueError(
                f"{where}immature is weight, but nothing says how long a label can change; set "
                "matures_after, such as 7d, or remove immature"
            )
        if self.happened_at is None:
            raise ValueError(
                f"{where}immature is weight, which learns from events' delays; set happened_at, "
                "the column of the event's time, or immature: mask"
            )
        if self.kind not in _WEIGHABLE:
            raise ValueError(
                f"{where}immature is weight, which is for events (kind {' or '.join(_WEIGHABLE)}), "
                f"but the task is of kind {self.kind}; set immature: mask"
            )
        if self.negative_sampling_rate != 1:
            raise ValueError(
                f"{where}immature is weight, which sampled negatives (negative_sampling_rate "
                f"{self.negative_sampling_rate}) do not go with, as some of them will be "
                "positives; set immature: mask"
            )

    def _ensure_metrics_fit_the_task(self) -> None:
        names = [metric.kind for metric in self.metrics]
        for metric in self.metrics:
            if names.count(metric.kind) > 1:
                raise ValueError(f"metrics names {metric.kind!r} twice; remove one of them")
            if METRICS.implementation(metric).of_events and not kind_of(self.kind).is_event:
                raise ValueError(
                    f"metrics: {metric.kind} judges probabilities, but the task is of kind "
                    f"{self.kind}; remove it"
                )

    def scaling(self, label: LabelSpec) -> tuple[float, float]:
        """Returns what is subtracted from a label, and what it is then divided by.

        Args:
            label: Statistics of the label itself.
        """
        return 0.0, 1.0

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says why it cannot be trained on observed labels from `lowest` to `highest`, or None.

        What `mmoe.metrics.task_kinds` says of all tasks of its kind is not said again.

        Args:
            lowest: The smallest observed label.
            highest: The largest one.
        """
        return None

    def check_among(self, tasks: Sequence["TaskConfig"]) -> None:
        """Refuses tasks of a run, this one among them, that it does not go with.

        Raises:
            ValueError: One is missing, or is of another kind than this one needs.
        """


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


class BinaryTask(TaskConfig):
    """Event that happens or not: 0 or 1; a row without a label counts in no loss and no metric."""

    kind: Literal["binary"] = "binary"


class NumberTask(TaskConfig):
    """Base of kinds whose label is a number in units of its own: money, seconds, degrees."""

    shifted: ClassVar[bool] = True  # `standard` centres the label; else 0 stays 0
    means = ("target",)  # the unit of the logits

    target: Literal["none", "standard"] = Field(
        default="standard",
        description="what the model learns of the label. standard: the label by the mean and the "
        "deviation that training rows have (watch_time, ziln: by its mean alone, never shifted); "
        "none: the label itself. Predictions, metrics and intervals are in the label's units; "
        "predictions go no further beyond the labels of training than a twentieth of their range",
    )

    def scaling(self, label: LabelSpec) -> tuple[float, float]:
        """Returns mean and deviation, or 0 and the mean; what cannot be a scale is left out."""
        if self.target == "none":
            return 0.0, 1.0
        return (label.mean, label.deviation or 1.0) if self.shifted else (0.0, label.mean or 1.0)


class RegressionTask(NumberTask):
    """A number."""

    kind: Literal["regression"] = "regression"
    # Curves beside what other numbers know: a wider type than the parent's
    target: Literal["none", "standard", "log", "yeo_johnson", "auto"] = Field(  # type: ignore
        default="standard",
        description="what the model learns of the label. standard: the label by the mean and the "
        "deviation that training rows have; none: the label itself; log: ln(1 + label / median) of "
        "labels of 0 or more; yeo_johnson: the power by which training labels are most like normal "
        "ones; auto: that where their tail is long on one side, else standard. Predictions are "
        "means in the label's units, by the validation rows' residuals where there is a curve, "
        "and go no further beyond the labels of training than a twentieth of their range",
    )

    @property
    def curve(self) -> str | None:
        """The curve that is asked for."""
        return self.target if self.target in ("log", "yeo_johnson", "auto") else None

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says why labels have no logarithm."""
        if self.target == "log" and lowest < 0:
            return f"goes down to {lowest:g}, but target: log is for 0 or more (or: yeo_johnson)"
        return None


class HuberTask(NumberTask):
    """A number with outliers: squared error near the label, absolute error far from it."""

    kind: Literal["huber"] = "huber"
    delta: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="the error from which on the loss grows linearly: in deviations of the label, "
        "with target: none in units of the label",
    )


class WatchTimeTask(NumberTask):
    """Seconds watched, 0 where nothing was: weighted logistic regression."""

    kind: Literal["watch_time"] = "watch_time"
    shifted: ClassVar[bool] = False
    negatives: Literal["unwatched", "all"] = Field(
        default="all",
        description="rows that count as negatives. unwatched: those of time 0, "
        "as in the paper, whose odds are the mean time only where few rows are watched; all: every "
        "row, so that the odds are the mean time itself",
    )

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says why no odds can be learnt: every row, or no row, is watched."""
        if highest <= 0:
            return "is 0 on all training rows with a label: nothing is watched"
        if lowest > 0 and self.negatives == "unwatched":
            return (
                "is above 0 on all training rows with a label, so the odds of kind watch_time have "
                "no end; set negatives: all"
            )
        return None


class ZilnTask(NumberTask):
    """A value that is mostly 0 and else has a long tail, such as spend: zero-inflated lognormal."""

    kind: Literal["ziln"] = "ziln"
    shifted: ClassVar[bool] = False

    @property
    def further(self) -> list[str]:
        """The chance of a value above 0."""
        return ["positive"]

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says that nothing is above 0."""
        return "is 0 on all training rows with a label" if highest <= 0 else None


_MOST_LEVELS = 100


class MulticlassTask(TaskConfig):
    """One of several classes, each with a probability."""

    means = ("classes",)  # they are logits
    kind: Literal["multiclass"] = "multiclass"
    classes: list[StrictInt | StrictStr] = Field(
        min_length=2,
        max_length=10_000,
        description="values of the label, text or whole numbers; probabilities are the columns "
        "pred_NAME_CLASS, and pred_NAME is the likeliest class",
    )

    @property
    def further(self) -> list[str]:
        """Probabilities of the classes."""
        return [str(name) for name in self.classes]

    @property
    def outcomes(self) -> list[Any]:
        """The classes, all text unless all are numbers."""
        if all(isinstance(name, int) for name in self.classes):
            return list(self.classes)
        return self.further

    @property
    def levels(self) -> list[float]:
        """Numbers of the classes."""
        return [float(number) for number in range(len(self.classes))]

    def _ensure_classes_differ(self) -> None:
        names = self.further
        for name in self.classes:
            if isinstance(name, int) and abs(name) > 2**53:  # labels are read as float64
                raise ValueError(
                    f"classes has {name}, but whole numbers are told apart up to 2^53 alone; write "
                    "such classes, and the label's column, as text"
                )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"classes name {', '.join(map(repr, twice))} twice; remove one")


class OrdinalTask(TaskConfig):
    """Levels in an order, whole numbers such as ratings from 1 to 5."""

    means = ("lowest", "highest")  # there is a threshold between each level and the next
    kind: Literal["ordinal"] = "ordinal"
    lowest: int = Field(ge=-(2**24), le=2**24, description="level of the label, such as 1")
    highest: int = Field(
        ge=-(2**24),
        le=2**24,
        description=f"level of the label, such as 5; at most {_MOST_LEVELS} levels. pred_NAME is "
        "the expected one, pred_NAME_LEVEL each one's probability",
    )

    @property
    def further(self) -> list[str]:
        """Probabilities of the levels."""
        return [str(level) for level in range(self.lowest, self.highest + 1)]

    @property
    def levels(self) -> list[float]:
        """The levels."""
        return [float(level) for level in range(self.lowest, self.highest + 1)]

    def _ensure_there_are_levels(self) -> None:
        if not 0 < self.highest - self.lowest < _MOST_LEVELS:
            raise ValueError(
                f"lowest is {self.lowest} and highest {self.highest}; expected 2 to "
                f"{_MOST_LEVELS} levels, the lowest first"
            )


class D2QTask(TaskConfig):
    """Seconds watched, learnt as a quantile among videos of about the same duration (D2Q)."""

    means = ("duration", "groups")  # what its quantiles are taken within
    kind: Literal["d2q"] = "d2q"
    duration: str = Field(
        min_length=1, description="column of the video's duration, above 0; scoring reads it too"
    )
    groups: int = Field(
        default=30,
        ge=1,
        le=1000,
        description="groups of durations with about as many training rows each, at most",
    )

    @property
    def inputs(self) -> list[str]:
        """The duration."""
        return [self.duration]

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says that nothing is watched."""
        return "is 0 on all training rows with a label: nothing is watched" if not highest else None


class EntireSpaceTask(TaskConfig):
    """Event after another one, learnt from rows without that one too (ESMM).

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
    def event(self) -> str | None:
        """Event of `observed_when`."""
        return self.observed_when

    @property
    def imputes(self) -> bool:
        """Whether it is doubly robust."""
        return self.counterfactual == "dr"

    @property
    def title(self) -> str:
        """Name of its training in a report."""
        return "ESMM" if self.counterfactual is None else f"ESCM²-{self.counterfactual.upper()}"

    @model_validator(mode="before")
    @classmethod
    def _after_names_the_event(cls, raw: Any) -> Any:
        """Checks that a task after another is observed when that one happened."""
        if not isinstance(raw, Mapping) or raw.get("observed_when") is not None:
            return raw
        after = raw.get("after")
        names = [after] if isinstance(after, str) else after
        if not isinstance(names, list | tuple) or len(names) != 1:
            return raw
        return {**raw, "observed_when": names[0]}

    def _ensure_one_event(self) -> None:
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

    def _ensure_counterfactual_keys_have_effect(self) -> None:
        for key in ("counterfactual_weight", "propensity_floor"):
            default = type(self).model_fields[key].default
            if self.counterfactual is None and getattr(self, key) != default:
                raise ValueError(
                    f"{key} is {getattr(self, key)}, which has no effect without counterfactual; "
                    "set counterfactual: ips or dr, or remove it"
                )

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


PointwiseWeight = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="share of the cross-entropy of each row in the loss; the rest is that of its "
        "group",
    ),
]


class GroupedTask(TaskConfig):
    """A task whose loss looks at several rows of a group at a time."""

    # Whether its predictions are probabilities, whatever the loss is mixed of
    compares = True
    calibrated: ClassVar[bool] = False

    group: str | None = Field(
        default=None,
        description="column of what belongs together, a request or a session: the rows of a group "
        "are in one training batch; default: data.group_column. The same for all tasks",
    )
    pointwise_weight: PointwiseWeight = 0.0

    def _ensure_scores_have_no_rate(self) -> None:
        if self.negative_sampling_rate != 1 and not self.calibrated:
            raise ValueError(
                f"task {self.name!r}: negative_sampling_rate is {self.negative_sampling_rate}, but "
                f"predictions of kind {self.kind} are scores, which it cannot correct; remove it, "
                "or set kind: binary or jrc"
            )


class BprTask(GroupedTask):
    """0 or 1; a group's 1s are to be scored above its 0s, pair by pair (BPR).

    Predictions are scores from 0 to 1, which rank the rows of a group, and no probabilities.
    """

    kind: Literal["bpr"] = "bpr"


class SoftmaxTask(GroupedTask):
    """0 or 1; a softmax over the rows of a group is to give its 1s all weight (listwise).

    Predictions are scores from 0 to 1, which rank the rows of a group, and no probabilities.
    """

    kind: Literal["softmax"] = "softmax"


class JrcTask(GroupedTask):
    """0 or 1; ranked within groups by two logits, whose difference is a probability's (JRC)."""

    calibrated: ClassVar[bool] = True

    kind: Literal["jrc"] = "jrc"
    pointwise_weight: PointwiseWeight = 0.5


def group_of(tasks: Sequence[TaskConfig], default: str | None) -> str | None:
    """Returns the column whose groups stay together in a training batch; None: there is none.

    Args:
        tasks: Of a run.
        default: `data.group_column`.

    Raises:
        ValueError: A task that compares rows has no group, or two have different ones.

    Example:
        >>> group_of([BprTask(name="click", label="click")], "session")
        'session'
    """
    found: str | None = None
    for task in tasks:
        if not isinstance(task, GroupedTask):
            continue
        own = task.group or default
        if own is None:
            raise ValueError(
                f"task {task.name!r}: kind {task.kind} compares rows of one group; say "
                "`group:` the column of requests or sessions, or data.group_column"
            )
        if found is not None and own != found:
            raise ValueError(
                f"task {task.name!r}: group is {own!r}, but another task's is {found!r}; batches "
                "keep the rows of one kind of group together, so name the same column"
            )
        found = own
    return found


class _Tasks(Kinds[TaskConfig]):
    """Kinds of tasks: trained by an `Objective` (torch), judged by a `TaskKind` in `KINDS`."""

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
TASKS.add("entire_space", EntireSpaceTask, "mmoe.tasks.kinds.binary:EntireSpace")
TASKS.add("huber", HuberTask, "mmoe.tasks.kinds.regression:Huber")
TASKS.add("watch_time", WatchTimeTask, "mmoe.tasks.kinds.regression:WatchTime")
TASKS.add("ziln", ZilnTask, "mmoe.tasks.kinds.regression:Ziln")
TASKS.add("multiclass", MulticlassTask, "mmoe.tasks.kinds.classes:Multiclass")
TASKS.add("ordinal", OrdinalTask, "mmoe.tasks.kinds.classes:Ordinal")
TASKS.add("d2q", D2QTask, "mmoe.tasks.kinds.regression:D2Q")
TASKS.add("bpr", BprTask, "mmoe.tasks.kinds.grouped:Bpr")
TASKS.add("softmax", SoftmaxTask, "mmoe.tasks.kinds.grouped:Softmax")
TASKS.add("jrc", JrcTask, "mmoe.tasks.kinds.grouped:Jrc")
