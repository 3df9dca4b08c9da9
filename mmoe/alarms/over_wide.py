"""Alarm: experts that add nothing to the wide part beside them."""

from collections.abc import Mapping
from typing import Any

from mmoe.alarms.alarm import Alarm

_MEND = (
    "read the learning curves: ids learnt by heart show as a loss that falls while validation gets "
    "worse (min_count: auto, more weight decay), a rate that is too low as one that stays; else a "
    "linear model is all that these columns tell"
)


def adds_nothing(over_wide: Mapping[str, Any]) -> list[Alarm]:
    """Finds a mixture that was not trained, or that makes no task better beyond chance.

    Args:
        over_wide: As metrics.json has it: whether the mixture is `untrained`, and of each of
            `tasks` the gain over the wide part with its interval.
    """
    tasks, about = over_wide["tasks"], "all tasks"
    if over_wide["untrained"]:
        finding = (
            "the best weights are those before the first epoch: what is evaluated and scored is "
            "the wide part alone, and no expert is trained"
        )
    elif tasks and all(one["low"] is not None and one["low"] <= 0 for one in tasks.values()):
        gains = ", ".join(f"{name} {one['value']:+.2g}" for name, one in tasks.items())
        about = ", ".join(tasks)  # others begin with a constant: they have the mixture alone
        metrics = "/".join(dict.fromkeys(one["heading"] for one in tasks.values()))
        finding = f"the mixture adds nothing to the wide part beyond chance ({metrics}: {gains})"
    else:
        return []
    return [Alarm(kind="over_wide", about=about, finding=finding, mend=_MEND)]
