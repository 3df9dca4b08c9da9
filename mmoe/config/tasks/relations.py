"""Relations between tasks, as `after` states them: which outcome happens only after which."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

from mmoe.config.tasks.base import TaskConfig


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
    places = {task.name: place for place, task in enumerate(tasks)}
    return [[places[name] for name in task.after] for task in tasks]


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
