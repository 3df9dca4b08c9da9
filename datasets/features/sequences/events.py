"""Events of rows: which items of a sequence's columns they are, the oldest first."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mmoe.config import SequenceFeature
from mmoe.datasets.features.ragged import blank_items, items_of, lists_of, unpad
from mmoe.datasets.rows.locations import place
from mmoe.datasets.values.arrow import is_list, offsets_of


class EventRows(NamedTuple):
    """Which items of a column are kept.

    Attributes:
        index_V: Their numbers among all items, the oldest of each row first; None: all as they are.
        lengths_N: How many each row has.
    """

    index_V: np.ndarray | None
    lengths_N: np.ndarray


def events_of(
    table: pa.Table,
    feature: SequenceFeature,
    number: int,
    origin: str,
    words: Sequence[str] | None = None,
) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Reads the items of one column of a sequence, and how many each row has.

    A missing item stays, as null: it is part of an event. Padding does not. So is one of `words`.

    Raises:
        ValueError: The column is missing or holds no lists, or a row has not as many items as the
            first column; names file, row and column.
    """
    values, lengths_N = event_items(table, feature.columns[number], feature, origin)
    return blank_items(values, words), lengths_N


def event_items(
    table: pa.Table, column: str, feature: SequenceFeature, origin: str
) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Reads the items of a column without those that are padding in the sequence's first one.

    Raises:
        ValueError: As `events_of`.
    """
    values, lengths_N = _items(table, column, feature, origin)
    first, first_N = values, lengths_N
    if column != feature.columns[0]:
        first, first_N = _items(table, feature.columns[0], feature, origin)
        _check_lengths(table, feature, origin, column, lengths_N, first_N)
    unpadded = unpad(table, feature, first, first_N, origin)
    return unpadded.of(values), unpadded.lengths_N


def _items(
    table: pa.Table, column: str, feature: SequenceFeature, origin: str
) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Reads all items of a column of lists, and how many each row has.

    A blank cell is one missing item where another column of its row has one item: text has no other
    way to write that.
    """
    lists = lists_of(table, column, feature, origin)
    values, lengths_N = items_of(lists, feature.separator)
    lengths_N = np.asarray(lengths_N, np.int64)
    if is_list(lists.type) or lengths_N.all():
        return values, lengths_N
    blank = np.flatnonzero(lengths_N == 0)
    names = [*feature.columns, *([] if feature.times is None else [feature.times])]
    others = [name for name in names if name != column]
    beside_N = np.zeros(len(blank), bool)
    for other in others:
        beside_N |= _counts(table, other, feature, origin, blank) == 1
    before = blank[beside_N]
    if not len(before):
        return values, lengths_N
    index = np.insert(np.arange(len(values)), offsets_of(lengths_N)[before], -1)
    filled_N = lengths_N.copy()
    filled_N[before] = 1
    return values.take(pa.array(index, mask=index < 0)), filled_N


def _counts(
    table: pa.Table, column: str, feature: SequenceFeature, origin: str, rows: np.ndarray
) -> np.ndarray:
    """How many items a column has in some rows."""
    some = lists_of(table, column, feature, origin).take(pa.array(rows))
    return items_of(some, feature.separator)[1]


def _check_lengths(
    table: pa.Table,
    feature: SequenceFeature,
    origin: str,
    column: str,
    lengths_N: np.ndarray,
    expected_N: np.ndarray,
) -> None:
    """Refuses a row whose items are not as many as those of the first column."""
    wrong_N = lengths_N != expected_N
    if wrong_N.any():
        row = int(wrong_N.argmax())
        raise ValueError(
            f"{place(table, origin, row)}: column {column!r} (of feature {feature.name!r}) has "
            f"{lengths_N[row]} items, but column {feature.columns[0]!r} has {expected_N[row]} in "
            "that row; columns of one sequence say one thing each of every event: give them as many"
        )


def kept_events(lengths_N: np.ndarray, feature: SequenceFeature) -> EventRows:
    """Chooses the latest `max_length` events of each row, the oldest of them first.

    Example:
        >>> feature = SequenceFeature(name="h", columns=["h"], max_length=2)
        >>> kept_events(np.array([3, 0, 1]), feature).index_V.tolist()
        [1, 2, 3]
        >>> feature = SequenceFeature(name="h", columns=["h"], max_length=2, newest="first")
        >>> kept_events(np.array([3, 0, 1]), feature).index_V.tolist()
        [1, 0, 3]
    """
    kept_N = np.minimum(lengths_N, feature.max_length)
    if feature.newest == "last" and np.array_equal(kept_N, lengths_N):
        return EventRows(None, lengths_N)
    ends_N = np.cumsum(lengths_N)
    place_V = np.arange(kept_N.sum()) - np.repeat(np.cumsum(kept_N) - kept_N, kept_N)
    if feature.newest == "last":
        return EventRows(np.repeat(ends_N - kept_N, kept_N) + place_V, kept_N)
    newest_first_N = ends_N - lengths_N + kept_N - 1  # the oldest of those that are kept
    return EventRows(np.repeat(newest_first_N, kept_N) - place_V, kept_N)
