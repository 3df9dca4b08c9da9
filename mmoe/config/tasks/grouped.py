"""Tasks whose loss compares the rows of one group: a request, a session."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mmoe.config.tasks.base import TaskConfig


class GroupedTask(TaskConfig):
    """A task whose loss looks at several rows of a group at a time."""

    # Whether its predictions are probabilities, whatever the loss is mixed of
    calibrated: ClassVar[bool] = False

    group: str | None = Field(
        default=None,
        description="column of what belongs together, a request or a session: the rows of a group "
        "are in one training batch; default: data.group_column. The same for all tasks",
    )
    pointwise_weight: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the cross-entropy of each row in the loss; the rest is that of its "
        "group",
    )

    @model_validator(mode="after")
    def _scores_have_no_rate(self) -> "GroupedTask":
        if self.negative_sampling_rate != 1 and not self.calibrated:
            raise ValueError(
                f"task {self.name!r}: negative_sampling_rate is {self.negative_sampling_rate}, but "
                f"predictions of kind {self.kind} are scores, which it cannot correct; remove it, "
                "or set kind: binary or jrc"
            )
        return self


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
    pointwise_weight: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="share of the cross-entropy of each row in the loss; the rest is that of its "
        "group",
    )


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
