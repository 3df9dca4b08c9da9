"""Alarm: a column whose ids repeat too rarely for rows of their own."""

from collections.abc import Iterable

from mmoe.alarms.alarm import Alarm
from mmoe.alarms.column import Column

# Of the training rows. On a census of 32,561 rows a column with 52 % had an embedding that learned
# its rows by heart: the validation AUC fell from 0.884 to 0.855 in the epochs after the first
_MOST = 0.5
_FEWEST_ITEMS = 100


def rare_ids(columns: Iterable[Column]) -> list[Alarm]:
    """Finds columns of which most training rows, held out, would have an id that nobody knows.

    Those whose rare ids share a row already are left alone.

    Args:
        columns: Of training rows, with `expected_unseen`.
    """
    found = []
    for column in columns:
        unseen = column.expected_unseen
        if unseen is None or unseen <= _MOST or column.shares_rare:
            continue
        if len(column.items) < _FEWEST_ITEMS:
            continue
        finding = (
            f"column {column.name} has ids that repeat too rarely to learn from: {unseen:.1%} of "
            "the training rows, held out, would have an unseen one"
        )
        mend = (
            "say min_count: auto, which gives the rare ones one row, kind: numeric where near "
            "values are alike, or leave the feature out"
        )
        found.append(Alarm(kind="rare_ids", about=column.name, finding=finding, mend=mend))
    return found
