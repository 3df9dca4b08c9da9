"""Sequences: a list of ids for each column of events, and one of the times since them."""

from collections.abc import Collection, Sequence
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
    TableSpec,
)
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.ragged import blank_items, items_of, lists_of, unpad
from mmoe.datasets.features.seen import SEEN_IDS, extend_seen, only_seen
from mmoe.datasets.rows.locations import cell_place, find_column, first_true, place, times_of
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_list, is_text, offsets_of, pc
from mmoe.datasets.values.columns import numbers_of
from mmoe.datasets.values.datetimes import local_datetimes


class EventRows(NamedTuple):
    """Which items of a column are kept."""

    # Their numbers among all items, the oldest of each row first; None: all as they are
    index_V: np.ndarray | None
    lengths_N: np.ndarray  # how many each row has


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
        if (row := first_true(lengths_N != first_N)) is not None:
            used_by = f"feature {feature.name!r}"
            raise ValueError(
                f"{cell_place(table, origin, row, column, used_by)} has {lengths_N[row]} items, "
                f"but column {feature.columns[0]!r} has {first_N[row]} in that row; columns of one "
                "sequence say one thing each of every event: give them as many"
            )
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
        some = lists_of(table, other, feature, origin).take(pa.array(blank))
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


def seconds_since(
    table: pa.Table, feature: SequenceFeature, origin: str
) -> tuple[np.ndarray, np.ndarray]:
    """Reads how long before the row's time each event was, and how many each row has.

    Args:
        table: N rows.
        feature: A sequence with times.
        origin: Starts error messages.

    Returns:
        Seconds, float64 [V], NaN where a time is missing; and lengths, int64 [N].

    Raises:
        ValueError: What is no time, not as many times as events, times that run backwards, an
            event after the row's own time, or one so long before it that their units must differ;
            names file, row and column.
    """
    assert feature.times is not None
    values, lengths_N = event_items(table, feature.times, feature, origin)
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    at_V = _seconds(values, feature, feature.times, table, origin, row_V)
    _refuse_backwards(at_V, row_V, table, feature, origin)
    if feature.now is None:
        now_N = _newest(at_V, row_V, len(lengths_N))
    else:
        column = find_column(table, feature.now, origin, f"feature {feature.name!r}")
        rows_N = np.arange(table.num_rows)
        now_N = _seconds(column, feature, feature.now, table, origin, rows_N)
    since_V = now_N[row_V] - at_V
    used_by = f"feature {feature.name!r}"
    if (first := first_true(since_V < 0)) is not None:
        raise ValueError(
            f"{cell_place(table, origin, int(row_V[first]), feature.times, used_by)} has an event "
            f"{-since_V[first]:g} s after {feature.now!r}, the row's own time; leave out what "
            "happens later: when rows are scored it is not known"
        )
    # Times in other units would all be in the last bucket
    if (first := first_true(np.isfinite(since_V) & (since_V >= _LONGEST))) is not None:
        until = "the row's latest event" if feature.now is None else f"{feature.now!r}"
        raise ValueError(
            f"{cell_place(table, origin, int(row_V[first]), feature.times, used_by)} has an event "
            f"{since_V[first]:g} s before {until}, more than 136 years: are they in other units? "
            "Numbers count seconds unless `unit` says otherwise; give both the same unit, and "
            "leave out a time that is not known"
        )
    return since_V, lengths_N


def _newest(at_V: np.ndarray, row_V: np.ndarray, rows: int) -> np.ndarray:
    newest_N = np.full(rows, -np.inf)
    known_V = ~np.isnan(at_V)
    np.maximum.at(newest_N, row_V[known_V], at_V[known_V])
    return newest_N


def _refuse_backwards(
    at_V: np.ndarray, row_V: np.ndarray, table: pa.Table, feature: SequenceFeature, origin: str
) -> None:
    known_V = np.flatnonzero(~np.isnan(at_V))
    steps = np.diff(at_V[known_V])
    wrong = (steps < 0) if feature.newest == "last" else (steps > 0)
    wrong &= np.diff(row_V[known_V]) == 0
    if (first := first_true(wrong)) is not None:
        row, used_by = int(row_V[known_V[first]]), f"feature {feature.name!r}"
        other, order = "first", "the oldest first"
        if feature.newest != "last":
            other, order = "last", "the newest first"
        raise ValueError(
            f"{cell_place(table, origin, row, feature.times or '', used_by)} has times that run "
            f"backwards (by {abs(steps[first]):g} s), expected {order}; sort each row's events, or "
            f"say newest: {other} if all rows are that way round"
        )


def _seconds(
    column: pa.ChunkedArray,
    feature: SequenceFeature,
    name: str,
    table: pa.Table,
    origin: str,
    row_V: np.ndarray,
) -> np.ndarray:
    """Seconds since 1970, or since any moment where they are numbers; NaN where missing."""
    kind = column.type
    if len(column) == 0 or column.null_count == len(column):
        return np.full(len(column), np.nan)
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numeric or is_text(kind):
        column = blank_items(column)
        numbers = numbers_of(column)
        assert numbers is not None, "of numbers and text"
        is_number_V = ~np.isnan(numbers)
        told_V = is_number_V if numeric else pc.is_valid(text.blank_to_null(column)).to_numpy()
        refuse = _Refusal(column, name, feature, table, origin, row_V)
        if is_number_V.any() and not is_number_V[told_V].all():
            refuse.two_ways(told_V, is_number_V)
        refuse.infinite(numbers)
        if is_number_V.any() or not told_V.any():
            unit = feature.unit or "s"
            return _of_nanos(column, numbers) if unit == "ns" else numbers / _PER_SECOND[unit]
    read = DatetimeFeature(name=feature.name, column=name, parts=["weekday"])
    named = pa.table({name: column})
    try:
        micros = local_datetimes(named, read, "times")
    except ValueError as error:
        raise ValueError(_of_row(str(error), table, origin, row_V)) from None
    seconds = micros.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.float64) / 1e6
    return np.where(micros.is_null().to_numpy(zero_copy_only=False), np.nan, seconds)


def _of_nanos(column: pa.ChunkedArray, numbers: np.ndarray) -> np.ndarray:
    """Whole microseconds as seconds, as datetimes have them: a float64 holds no 19 digits."""
    try:
        whole = pc.fill_null(column.cast(pa.int64()), 0).to_numpy() // 1000
    except pa.ArrowInvalid:  # fractions, and words for missing
        whole = np.floor(numbers / 1e3)
    return np.where(np.isnan(numbers), np.nan, whole / 1e6)


class _Refusal(NamedTuple):
    """Says which row of a table has an item that is no time."""

    column: pa.ChunkedArray
    name: str
    feature: SequenceFeature
    table: pa.Table
    origin: str
    row_V: np.ndarray

    def two_ways(self, told_V: np.ndarray, is_number_V: np.ndarray) -> None:
        """Numbers and text beside one another: one of them would be lost."""
        first = int(told_V.argmax())
        other = int((told_V & (is_number_V != is_number_V[first])).argmax())
        row = place(self.table, self.origin, int(self.row_V[first]))
        raise ValueError(
            f"{self._item(other)}, but {self.column[first].as_py()!r} in {row}: numbers and "
            "datetimes in one column; write all times in one way, or leave out what is no time"
        )

    def infinite(self, numbers: np.ndarray) -> None:
        """It would make the times of the row's other events infinite, too."""
        if (item := first_true(np.isinf(numbers))) is not None:
            raise ValueError(f"{self._item(item)}, expected a time; leave out what is not known")

    def _item(self, index: int) -> str:
        row = place(self.table, self.origin, int(self.row_V[index]))
        return (
            f"{row}: column {self.name!r} (of feature {self.feature.name!r}) has the time "
            f"{self.column[index].as_py()!r}"
        )


def _of_row(message: str, table: pa.Table, origin: str, row_V: np.ndarray) -> str:
    """Says the row of the table where an error says that of an item, counted from 1."""
    start, found, rest = message.partition("times: row ")
    number, colon, rest = rest.partition(":")
    if start or not found or not number.isdigit() or not colon:
        return message.replace("times:", f"{origin}:", 1)
    return f"{place(table, origin, int(row_V[int(number) - 1]))}:{rest}"


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

    def check(self, table: pa.Table, origin: str) -> None:
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
        words = self.config.data.missing_words
        return events_of(table, self.feature, self.number, origin, words)

    def _events(self, table: pa.Table, origin: str) -> tuple[pa.ChunkedArray, EventRows]:
        values, lengths_N = self._items(table, origin)
        rows = kept_events(lengths_N, self.feature)
        return (values if rows.index_V is None else values.take(pa.array(rows.index_V))), rows


class _GapCodec(Codec[SequenceFeature]):
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

    def tables(self, rules: Rules) -> list[TableSpec]:
        """Returns the table of its buckets."""
        return [TableSpec(name=self.feature.gap_name, num_rows=GAP_ROWS, dim=self.dim)]

    def check(self, table: pa.Table, origin: str) -> None:
        """Refuses times that run backwards, and what is no time."""
        seconds_since(table, self.feature, origin)

    def start(self, origin: str, codecs: Sequence[Codec[Any]]) -> np.ndarray:
        """Returns which buckets training has, bool."""
        return np.zeros(GAP_ROWS, bool)

    def add(self, fit: np.ndarray, table: pa.Table, origin: str) -> None:
        """Learns which buckets more training rows have."""
        [(ids_V, _, _)] = self._coded(table, origin).lists
        fit[ids_V] = True

    def finish(self, fits: Sequence[np.ndarray], rules: Rules) -> None:
        """Keeps the buckets that training rows had."""
        rules[SEEN_IDS][self.feature.gap_name] = tuple(np.flatnonzero(fits[0]).tolist())

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Adds the buckets that an earlier run had."""
        extend_seen(self.feature.gap_name, rules, earlier)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: a bucket for each of the latest events, the oldest first."""
        [(ids_V, offsets, _)] = self._coded(table, origin).lists
        ids_V = only_seen(ids_V, rules[SEEN_IDS].get(self.feature.gap_name))
        return Coded(lists=[(ids_V, offsets, None)])

    def _coded(self, table: pa.Table, origin: str) -> Coded:
        since_V, lengths_N = seconds_since(table, self.feature, origin)
        rows = kept_events(lengths_N, self.feature)
        ids_V = gap_ids(since_V if rows.index_V is None else since_V[rows.index_V])
        return Coded(lists=[(ids_V, offsets_of(rows.lengths_N), None)])

    def meaning(self) -> dict[str, object]:
        """Returns what its first column's codec returns."""
        return SequenceCodec(self.feature, self.config).meaning()

    def table_meanings(self) -> dict[str, dict[str, object]]:
        """Returns what the buckets stand for."""
        return {self.feature.gap_name: {"dim": self.dim, "content": self.content}}
