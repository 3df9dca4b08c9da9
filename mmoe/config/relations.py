"""Tasks that come after others: as `after` states it, and what their towers read of one another."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from mmoe.config.gates import Width
from mmoe.config.kinds import HasKinds, Kinds
from mmoe.config.tasks import TaskConfig


def check_relations(tasks: Sequence[TaskConfig]) -> None:
    """Refuses relations that cannot be: with no such task, with itself, stated twice, in a circle.

    Raises:
        ValueError: Names the task, what is wrong with its `after`, and the mend.

    Example:
        >>> click = TaskConfig(name="click", label="click", after="buy")
        >>> check_relations([click, TaskConfig(name="buy", label="buy", after="click")])
        Traceback (most recent call last):
        ValueError: after: in a circle: click → buy → click; remove one of them
    """
    names = [task.name for task in tasks]
    for task in tasks:
        for name in task.after:
            if name not in names:
                close = get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"tasks: {', '.join(names)}"
                raise ValueError(
                    f"task {task.name!r}: after names {name!r}, but there is no such task; {hint}"
                )
            if name == task.name:
                raise ValueError(f"task {task.name!r}: after names the task itself; remove it")
            if task.after.count(name) > 1:
                raise ValueError(f"task {task.name!r}: after names {name!r} twice; remove one")
    order_of(parents_of(tasks), names)


def parents_of(tasks: Sequence[TaskConfig]) -> list[list[int]]:
    """Returns for each task the places of those that it comes after.

    Example:
        >>> click = TaskConfig(name="click", label="click")
        >>> parents_of([click, TaskConfig(name="buy", label="buy", after="click")])
        [[], [0]]
    """
    indices = {task.name: t for t, task in enumerate(tasks)}
    return [[indices[name] for name in task.after] for task in tasks]


def order_of(parents: Sequence[Sequence[int]], names: Sequence[str] = ()) -> list[int]:
    """Returns all tasks so that each comes after those that it follows, else in their own order.

    Args:
        parents: For each task the places of those that it comes after.
        names: Of the tasks, for the error.

    Raises:
        ValueError: They follow one another in a circle.

    Example:
        >>> order_of([[1], [], [0, 1]])
        [1, 0, 2]
    """
    sorter = TopologicalSorter(dict(enumerate(parents)))
    try:
        sorter.prepare()
    except CycleError as error:
        circle: list[int] = error.args[1]  # from the first outcome to the last, as it would happen
        named = [names[place] if names else str(place) for place in circle]
        raise ValueError(f"after: in a circle: {' → '.join(named)}; remove one of them") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for task in sorter.get_ready():
            heappush(ready, task)
        order.append(heappop(ready))
        sorter.done(order[-1])
    return order


def ordered_pairs(tasks: Sequence[TaskConfig]) -> Iterator[tuple[int, int]]:
    """Lists pairs of binary tasks, a former and a later, with probabilities of the same rows.

    The later one's is then the smaller. Where one alone is observed after an event, its probability
    is one given that event, and may well be the larger. Tasks of weight 0 are not trained, so
    neither are their pairs.

    Example:
        >>> click = TaskConfig(name="click", label="click")
        >>> buy = TaskConfig(name="buy", label="buy", after="click")
        >>> given = TaskConfig(name="like", label="like", after="click", observed_when="click")
        >>> list(ordered_pairs([click, buy, given]))
        [(0, 1)]
        >>> list(ordered_pairs([click, buy.model_copy(update={"weight": 0.0})]))
        []
    """
    for child, parents in enumerate(parents_of(tasks)):
        for parent in parents:
            both = tasks[parent], tasks[child]
            if all(task.kind == "binary" and task.weight > 0 for task in both) and (
                both[0].observed_when == both[1].observed_when
            ):
                yield parent, child


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


# Of Xi et al. (KDD 2021), section 4.1.4
_CALIBRATOR_WEIGHT = 0.6


class TransferConfig(HasKinds):
    """Transfer of towers, from a task to those that come after it."""

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
    """DBMTL: each tower's last hidden layer reads those of the tasks before, P(y | x, those)."""

    title: ClassVar[str] = "DBMTL"
    reads_hidden: ClassVar[bool] = True
    kind: Literal["dbmtl"] = "dbmtl"


# Config class → what puts it into a network, called as `mmoe.models.build.relate_tasks` does; None:
# nothing does
TRANSFERS = Kinds("transfer", TransferConfig, default="none")
TRANSFERS.add("none", NoTransfer, None)
TRANSFERS.add("aitm", AdaptiveTransferConfig, "mmoe.models.build:adaptive_transfer")
TRANSFERS.add("dbmtl", BayesianTransferConfig, "mmoe.models.build:bayesian_transfer")
