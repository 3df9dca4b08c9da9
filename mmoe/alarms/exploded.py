"""Alarms: an epoch whose training loss is many times that of predicting the mean."""

from collections.abc import Mapping
from typing import Any

from mmoe.alarms.alarm import Alarm
from mmoe.errors import WHAT_TO_CHANGE

# A first epoch that overshoots and comes back has had up to six times that loss (log-loss of 4.3
# beside a factorization machine); ones that have ruined the weights 140 to 700 times
TIMES = 10.0


def exploded_losses(
    losses: Mapping[str, float | None], of_mean: Mapping[str, float]
) -> dict[str, float]:
    """Returns the tasks whose loss is over ten times that of predicting their mean, and how often.

    Args:
        losses: Task → mean training loss of an epoch; None: no row had its label.
        of_mean: Task → the loss of one number for all rows; tasks that are not there have none.

    Example:
        >>> exploded_losses({"click": 0.4, "price": 138.0}, {"click": 0.5, "price": 1.0})
        {'price': 138.0}
    """
    found = {}
    for task, loss in losses.items():
        base = of_mean.get(task, 0.0)
        if loss is not None and base > 0 and not loss <= TIMES * base:
            found[task] = loss / base
    return found


def alarm_of_explosion(history: list[dict[str, Any]]) -> list[Alarm]:
    """Raises the alarm of an epoch after which training stopped, since its losses had exploded.

    Args:
        history: Entries of the run's epochs; the last one has `exploded` where that was.
    """
    exploded = history[-1].get("exploded") if history else None
    if not exploded:
        return []
    task = max(exploded, key=exploded.__getitem__)
    times = exploded[task]
    kept = next((entry["epoch"] for entry in history if entry["best"]), None)
    weights = "before the first epoch" if kept == 0 else f"after epoch {kept}"
    finding = (
        f"training stopped after epoch {history[-1]['epoch']}, whose loss of {task} was "
        f"{times:,.0f} times that of predicting the mean; the weights are those {weights}"
    )
    mend = WHAT_TO_CHANGE + "; or model.interaction: none, where there is one"
    return [Alarm(kind="exploded", about=", ".join(exploded), finding=finding, mend=mend)]
