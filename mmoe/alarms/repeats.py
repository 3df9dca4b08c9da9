"""Alarm: rows of the test that the model was trained on, since the log has them twice."""

from collections.abc import Sequence
from typing import NamedTuple

from mmoe.alarms.alarm import Alarm

# Of validation or test rows; fewer hardly move a metric
_LEAST = 0.01
_MEND = "set data.repeated_rows: {keys}, or mend the log if rows were delivered twice"
_KEYS = "together (copies stay in one split) or drop"


class Effect(NamedTuple):
    """A metric of one task on all test rows, and on those that are no copies of training rows.

    Attributes:
        task: Its name.
        metric: As people read it, such as `AUC`.
        of_all: On all test rows.
        of_others: On test rows that are no copies.
    """

    task: str
    metric: str
    of_all: float
    of_others: float


def repeated_rows(
    validation: float, test: float, effects: Sequence[Effect] = (), *, by_file: bool = False
) -> Alarm | None:
    """Returns an alarm where training has rows of the other splits; None: it has hardly any.

    Args:
        validation: Share of the validation rows that training has too.
        test: Likewise of the test rows.
        effects: What that does to metrics, where it is known.
        by_file: Files are the splits, which no row leaves.

    Example:
        >>> repeated_rows(0.28, 0.29, [Effect("click", "AUC", 0.776, 0.501)]).finding[:51]
        '29.0% of the test rows, 28.0% of the validation row'
    """
    if max(validation, test) < _LEAST:
        return None
    finding = (
        f"{100 * test:.1f}% of the test rows, {100 * validation:.1f}% of the validation rows are "
        "copies of training rows"
    )
    if effects:
        shown = "; ".join(
            f"{one.task} has {one.metric} {one.of_all:.4g}, without the copies {one.of_others:.4g}"
            for one in effects
        )
        finding += f" ({shown})"
    mend = _MEND.format(keys="drop" if by_file else _KEYS)
    return Alarm(kind="repeated_rows", about="rows", finding=finding, mend=mend)
