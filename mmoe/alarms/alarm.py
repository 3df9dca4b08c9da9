"""`Alarm`: one thing that is likely wrong, and how to mend it."""

from collections.abc import Sequence
from typing import Literal

from mmoe.config import Stored

AlarmKind = Literal[
    "exploded",
    "leak",
    "repeated_rows",
    "rare_ids",
    "over_wide",
    "same_predictions",
    "constant_predictions",
    "dead_expert",
    "gate",
    "outdone",
    "calibration",
    "worse_than_mean",
    "drift",
]

# Lines of one kind on a screen; metrics.json and the report have all
_LINES_OF_A_KIND = 8


class Alarm(Stored):
    """One finding: what, about which column, task, expert or gate, and the mend.

    Example:
        >>> alarm = Alarm(kind="leak", about="paid", finding="column paid is …", mend="remove it")
        >>> alarm.line
        'alarm: column paid is …; remove it'
    """

    kind: AlarmKind
    about: str
    finding: str
    mend: str

    @property
    def line(self) -> str:
        """Line for a screen."""
        return f"alarm: {self.finding}; {self.mend}"


def lines_of(alarms: Sequence[Alarm]) -> list[str]:
    """Returns a line for each alarm; of a kind that has many, for the first ones alone."""
    lines: list[str] = []
    for kind in dict.fromkeys(alarm.kind for alarm in alarms):
        mine = [alarm for alarm in alarms if alarm.kind == kind]
        lines += [alarm.line for alarm in mine[:_LINES_OF_A_KIND]]
        if len(mine) > _LINES_OF_A_KIND:
            others = ", ".join(alarm.about for alarm in mine[_LINES_OF_A_KIND:])
            lines.append(f"alarm: likewise {others}; `alarms` in metrics.json has all")
    return lines
