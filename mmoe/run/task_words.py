"""One number a task as a line for people: each by name, or of many tasks the mean and both ends."""

from collections.abc import Mapping

import numpy as np

# More would not be read: a line of progress has about 100 columns
MOST_NAMED = 8


def by_task(values: Mapping[str, float | None], name: str = "", separator: str = " ") -> str:
    """Says the numbers of tasks; those that are None are left out.

    Args:
        values: By task.
        name: Of the number, said behind each task's name.
        separator: Between tasks that are named.

    Returns:
        A line; empty where no task has a number.

    Example:
        >>> by_task({"click": 0.75, "buy": 0.8, "like": None}, "auc", ", ")
        'click auc 0.7500, buy auc 0.8000'
        >>> by_task({f"task{number}": number / 10 for number in range(10)}, "auc")
        'mean auc 0.4500 of 10 tasks, from 0.0000 (task0) to 0.9000 (task9)'
    """
    known = {task: value for task, value in values.items() if value is not None}
    named = f" {name}" if name else ""
    if len(known) <= MOST_NAMED:
        return separator.join(f"{task}{named} {value:.4f}" for task, value in known.items())
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    mean = float(np.mean(list(known.values())))
    return (
        f"mean{named} {mean:.4f} of {len(known)} tasks, "
        f"from {known[low]:.4f} ({low}) to {known[high]:.4f} ({high})"
    )
