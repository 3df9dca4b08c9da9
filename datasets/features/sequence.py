"""Sequences: a list of ids for each column of events, and one of the times since them."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mmoe.config import (
    DatetimeFeature,
    FeatureSpec,
    RunConfig,
    SequenceFeature,
    SequenceSpec,
    TableConfig,
)
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.ragged import ListRows, blank_items, items_of, unpad
from mmoe.datasets.features.seen import SEEN_IDS, SeenCodec, only_seen
from mmoe.datasets.rows.locations import find_column, first_true, place, times_of
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_list, is_text, offsets_of, pc
from mmoe.datasets.values.columns import numbers_of
from mmoe.datasets.values.datetimes import local_datetimes


class EventRows(NamedTuple):
    """Items of a column that are kept."""

    # Their numbers among all items, the oldest of each row first; None: all as they are
    index_V: np.ndarray | None
    lengths_N: np.ndarray  # how many each row has


def event_items(rows: ListRows[SequenceFeature], column: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Reads the items of a column, and how many each row has.

    Items that are padding in the sequence's first column are left out; a missing one stays, as it
    is part of an event.

    Raises:
        ValueError: The column is missing or holds no lists, or a row has not as many items as the
            first column; names file, row and column.
    """
    values, lengths_N = _items(rows, column)
    first, first_N = values, lengths_N
    own = rows.feature.columns[0]
    if column != own:
        first, first_N = _items(rows, own)
        if (row := first_true(lengths_N != first_N)) is not None:
            raise ValueError(
                f"{rows.cell(row, column)} has {lengths_N[row]} items, but column {own!r} has "
                f"{first_N[row]} in that row; columns of one sequence say one thing each of every "
                "event: give them as many"
            )
    unpadded = unpad(rows, first, first_N)
    return unpadded.of(values), unpadded.lengths_N


def _items(rows: ListRows[SequenceFeature], column: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Reads all items of a column of lists, and how many each row has.

    A blank cell is one missing item where another column of its row has one item: text has no other
    way to write that.
    """
    feature, lists = rows.feature, rows.lists(column)
    values, lengths_N = items_of(lists, feature.separator)
    lengths_N = np.asarray(lengths_N, np.int64)
    if is_list(lists.type) or lengths_N.all():
        return values, lengths_N
    blank = np.flatnonzero(lengths_N == 0)
    names = [*feature.columns, *([] if feature.times is None else [feature.times])]
    beside_N = np.zeros(len(blank), bool)
    for other in names:
        if other != column:
            some = rows.lists(other).take(pa.array(blank))
            beside_N |= items_of(some, feature.separator)[1] == 1
    before = blank[beside_N]
    if not len(before):
        return values, lengths_N
    index = np.insert(np.arange(len(values)), offsets_of(lengths_N)[before], -1)
    filled_N = lengths_N.copy()
    filled_N[before] = 1
    return values.take(pa.array(index, mask=index < 0)), filled_N


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


# Each is √2 times as long as the one before: the last begins at 2^31.5 seconds, 95 years
_BUCKETS = 64
GAP_ROWS = FIRST_KNOWN + _BUCKETS
_LONGEST = 2.0**32  # seconds, 136 years: where a bucket after the last would begin
# Divided by, not multiplied with 1e-3: that is the float that a datetime of the moment has, too
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}


def gap_ids(since_V: np.ndarray) -> np.ndarray:
    """Returns the bucket of each time since an event, int32 [V]: `2 + ⌊2 log₂(1 + seconds)⌋`.

    0 where it is not known.

    Example:
        >>> gap_ids(np.array([0, 1, 60, 86_400, np.nan])).tolist()
        [2, 4, 13, 34, 0]
    """
    known_V = np.isfinite(since_V)
    bucket_V = np.floor(2 * np.log2(1 + np.where(known_V, since_V, 0)))
    bucket_V = np.minimum(bucket_V, _BUCKETS - 1).astype(np.int32)
    return np.where(known_V, FIRST_KNOWN + bucket_V, MISSING).astype(np.int32)


def seconds_since(rows: ListRows[SequenceFeature]) -> tuple[np.ndarray, np.ndarray]:
    """Reads how long before the row's time each event was, and how many each row has.

    Args:
        rows: Of a sequence with times.

    Returns:
        Seconds, float64 [V], NaN where a time is missing; and lengths, int64 [N].

    Raises:
        ValueError: What is no time, not as many times as events, times that run backwards, an
            event after the row's own time, or one so long before it that their units must differ;
            names file, row and column.
    """
    feature = rows.feature
    assert feature.times is not None
    values, lengths_N = event_items(rows, feature.times)
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    at_V = _Times(rows, feature.times, values, row_V).seconds()
    _refuse_backwards(rows, at_V, row_V)
    if feature.now is None:
        now_N = np.full(len(lengths_N), -np.inf)  # that of the latest event
        known_V = ~np.isnan(at_V)
        np.maximum.at(now_N, row_V[known_V], at_V[known_V])
    else:
        column = find_column(rows.table, feature.now, rows.origin, rows.used_by)
        now_N = _Times(rows, feature.now, column, np.arange(rows.table.num_rows)).seconds()
    since_V = now_N[row_V] - at_V
    if (first := first_true(since_V < 0)) is not None:
        raise ValueError(
            f"{rows.cell(int(row_V[first]), feature.times)} has an event {-since_V[first]:g} s "
            f"after {feature.now!r}, the row's own time; leave out what happens later: when rows "
            "are scored it is not known"
        )
    # Times in other units would all be in the last bucket
    if (first := first_true(np.isfinite(since_V) & (since_V >= _LONGEST))) is not None:
        until = "the row's latest event" if feature.now is None else f"{feature.now!r}"
        raise ValueError(
            f"{rows.cell(int(row_V[first]), feature.times)} has an event {since_V[first]:g} s "
            f"before {until}, more than 136 years: are they in other units? Numbers count seconds "
            "unless `unit` says otherwise; give both the same unit, and leave out a time that is "
            "not known"
        )
    return since_V, lengths_N


def _refuse_backwards(rows: ListRows[SequenceFeature], at_V: np.ndarray, row_V: np.ndarray) -> None:
    known_V = np.flatnonzero(~np.isnan(at_V))
    steps = np.diff(at_V[known_V])
    wrong = (steps < 0) if rows.feature.newest == "last" else (steps > 0)
    wrong &= np.diff(row_V[known_V]) == 0
    if (first := first_true(wrong)) is not None:
        other, order = "first", "the oldest first"
        if rows.feature.newest != "last":
            other, order = "last", "the newest first"
        raise ValueError(
            f"{rows.cell(int(row_V[known_V[first]]), rows.feature.times or '')} has times that run "
            f"backwards (by {abs(steps[first]):g} s), expected {order}; sort each row's events, or "
            f"say newest: {other} if all rows are that way round"
        )


def _of_nanos(column: pa.ChunkedArray, numbers: np.ndarray) -> np.ndarray:
    """Whole microseconds as seconds, as datetimes have them: a float64 holds no 19 digits."""
    try:
        whole = pc.fill_null(column.cast(pa.int64()), 0).to_numpy() // 1000
    except pa.ArrowInvalid:  # fractions, and words for missing
        whole = np.floor(numbers / 1e3)
    return np.where(np.isnan(numbers), np.nan, whole / 1e6)


class _Times(NamedTuple):
    """A column of times, of events or of rows, and which row each item is of."""

    rows: ListRows[SequenceFeature]
    name: str
    column: pa.ChunkedArray
    row_V: np.ndarray

    def seconds(self) -> np.ndarray:
        """Seconds since 1970, or since any moment where they are numbers; NaN where missing."""
        column, kind = self.column, self.column.type
        if len(column) == 0 or column.null_count == len(column):
            return np.full(len(column), np.nan)
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        numeric |= pa.types.is_decimal(kind)
        if numeric or is_text(kind):
            column = blank_items(column)
            numbers = numbers_of(column)
            assert numbers is not None, "of numbers and text"
            is_number_V = ~np.isnan(numbers)
            told_V = is_number_V if numeric else pc.is_valid(text.blank_to_null(column)).to_numpy()
            if is_number_V.any() and not is_number_V[told_V].all():
                self._refuse_two_ways(column, told_V, is_number_V)
            # It would make the times of the row's other events infinite, too
            if (item := first_true(np.isinf(numbers))) is not None:
                mend = "expected a time; leave out what is not known"
                raise ValueError(f"{self._item(column, item)}, {mend}")
            if is_number_V.any() or not told_V.any():
                unit = self.rows.feature.unit or "s"
                return _of_nanos(column, numbers) if unit == "ns" else numbers / _PER_SECOND[unit]
        read = DatetimeFeature(name=self.rows.feature.name, column=self.name, parts=["weekday"])
        try:
            micros = local_datetimes(pa.table({self.name: column}), read, "times")
        except ValueError as error:
            raise ValueError(self._of_row(str(error))) from None
        seconds = micros.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.float64) / 1e6
        return np.where(micros.is_null().to_numpy(zero_copy_only=False), np.nan, seconds)

    def _refuse_two_ways(
        self, column: pa.ChunkedArray, told_V: np.ndarray, is_number_V: np.ndarray
    ) -> None:
        """Numbers and text beside one another: one of them would be lost."""
        first = int(told_V.argmax())
        other = int((told_V & (is_number_V != is_number_V[first])).argmax())
        raise ValueError(
            f"{self._item(column, other)}, but {column[first].as_py()!r} in {self._row(first)}: "
            "numbers and datetimes in one column; write all times in one way, or leave out what is "
            "no time"
        )

    def _row(self, item: int) -> str:
        return place(self.rows.table, self.rows.origin, int(self.row_V[item]))

    def _item(self, column: pa.ChunkedArray, item: int) -> str:
        return (
            f"{self._row(item)}: column {self.name!r} (of {self.rows.used_by}) has the time "
            f"{column[item].as_py()!r}"
        )

    def _of_row(self, message: str) -> str:
        """Says the row of the table where an error says that of an item, counted from 1."""
        start, found, rest = message.partition("times: row ")
        number, colon, rest = rest.partition(":")
        if start or not found or not number.isdigit() or not colon:
            return message.replace("times:", f"{self.rows.origin}:", 1)
        return f"{self._row(int(number) - 1)}:{rest}"


class SequenceCodec(IdCodec[Any]):
    """Codec of one column of events.

    The first column's says which sequence they are, for all of them.

    Args:
        feature: The sequence.
        config: The run.
        number: Which of its columns.
    """

    counts_times = True
    of_lists = True
    # How files say it
    free = IdCodec.free | {
        "columns", "times", "now", "unit", "newest", "separator", "format",
        "padding", "padding_side", "length", "mask",
    }  # fmt: skip

    def __init__(self, feature: SequenceFeature, config: RunConfig, number: int = 0) -> None:
        self.number = number
        owner: Any = TableConfig(name=feature.event_names[number])
        if feature.target is not None:
            owner = next(f for f in config.features if f.name == feature.target[number])
        super().__init__(feature, config, owner)

    @classmethod
    def of(cls, feature: SequenceFeature, config: RunConfig) -> list[Codec[Any]]:
        """Makes one for each column, and one for the times."""
        events: list[Codec[Any]] = [cls(feature, config, n) for n in range(len(feature.columns))]
        if feature.times is None:
            return events
        return [*events, _GapCodec(feature, config, sum(codec.dim for codec in events))]

    @property
    def column(self) -> str:
        """Name of its column."""
        return self.feature.columns[self.number]

    @property
    def lists(self) -> list[FeatureSpec]:
        """Its events."""
        name = self.feature.event_names[self.number]
        return [FeatureSpec(name=name, table=self.table, pooling="none")]

    @property
    def sequences(self) -> list[SequenceSpec]:
        """The sequence, said once: by its first column."""
        feature = self.feature
        if self.number:
            return []
        return [
            SequenceSpec(
                name=feature.name,
                events=tuple(feature.event_names),
                gap=feature.gap_name if feature.times is not None else None,
                targets=tuple(feature.target or ()),
                max_length=feature.max_length,
                unpooled=feature.unpooled,
                encoder=feature.encoder,
            )
        ]

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Learns from more training rows."""
        (values, rows), times_N = self._events(table, origin), times_of(table)
        fit.add(values, None if times_N is None else np.repeat(times_N, rows.lengths_N))

    def check(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Refuses rows whose columns have different lengths."""
        self._items(table, origin)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: ids of the latest events, the oldest first; there may be none."""
        values, rows = self._events(table, origin)
        ids_V = self.ids(rules).lookup(values, self.label(origin))
        return Coded(lists=[(ids_V, offsets_of(rows.lengths_N), None)])

    def meaning(self) -> dict[str, object]:
        """Returns settings to keep; columns are told by their targets, or else by name."""
        feature = self.feature
        columns = len(feature.columns) if feature.target is not None else feature.columns
        kept = {"columns": columns, "times": feature.times is not None}
        return super().meaning() | kept

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Returns its ids, all of one weight; trees take the number of events."""
        return super().looked_up(table, rules, origin, ())

    def _items(self, table: pa.Table, origin: str) -> tuple[pa.ChunkedArray, np.ndarray]:
        values, lengths_N = event_items(ListRows(table, self.feature, origin), self.column)
        return blank_items(values, self.config.data.missing_words), lengths_N

    def _events(self, table: pa.Table, origin: str) -> tuple[pa.ChunkedArray, EventRows]:
        values, lengths_N = self._items(table, origin)
        rows = kept_events(lengths_N, self.feature)
        return (values if rows.index_V is None else values.take(pa.array(rows.index_V))), rows


class _GapCodec(SeenCodec[SequenceFeature]):
    """Codec of the times of events: how long ago each was, in buckets."""

    content = "times since events"
    free = SequenceCodec.free

    def __init__(self, feature: SequenceFeature, config: RunConfig, width: int) -> None:
        super().__init__(feature, config)
        self.dim = width  # added to the event

    @property
    def lookups(self) -> list[FeatureSpec]:
        """Nothing: it looks up no single id."""
        return []

    @property
    def lists(self) -> list[FeatureSpec]:
        """A time for each event."""
        name = self.feature.gap_name
        return [FeatureSpec(name=name, table=name, pooling="none")]

    @property
    def buckets(self) -> dict[str, int]:
        """A table of them."""
        return {self.feature.gap_name: GAP_ROWS}

    def check(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Refuses times that run backwards, and what is no time."""
        seconds_since(ListRows(table, self.feature, origin))

    def bucket_ids(self, table: pa.Table, origin: str) -> list[np.ndarray]:
        """Returns the bucket of each event, whether training had it or not."""
        return [self._gaps(table, origin)[0]]

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: a bucket for each of the latest events, the oldest first."""
        ids_V, offsets = self._gaps(table, origin)
        ids_V = only_seen(ids_V, rules[SEEN_IDS][self.feature.gap_name])
        return Coded(lists=[(ids_V, offsets, None)])

    def _gaps(self, table: pa.Table, origin: str) -> tuple[np.ndarray, np.ndarray]:
        since_V, lengths_N = seconds_since(ListRows(table, self.feature, origin))
        rows = kept_events(lengths_N, self.feature)
        since_V = since_V if rows.index_V is None else since_V[rows.index_V]
        return gap_ids(since_V), offsets_of(rows.lengths_N)

    def meaning(self) -> dict[str, object]:
        """Returns what its first column's codec returns."""
        return SequenceCodec(self.feature, self.config).meaning()

    def table_meanings(self) -> dict[str, dict[str, object]]:
        """Returns what the buckets stand for."""
        return {self.feature.gap_name: {"dim": self.dim, "content": self.content}}
