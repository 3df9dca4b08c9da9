"""Sequences: a list of ids for each column of events, and one of the times since them."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import (
    FeatureSpec,
    RunConfig,
    SequenceFeature,
    SequenceSpec,
    TableConfig,
    TableSpec,
)
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules
from mmoe.datasets.features.fit_ids import CountFit, KindFit
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.seen import SEEN_IDS, extend_seen, only_seen
from mmoe.datasets.features.sequences.events import EventRows, events_of, kept_events
from mmoe.datasets.features.sequences.times import GAP_ROWS, gap_ids, seconds_since
from mmoe.datasets.rows.locations import times_of
from mmoe.datasets.values.arrow import offsets_of


class SequenceCodec(IdCodec[Any]):
    """Codec of one column of events.

    The first column's says which sequence they are, for all of them.

    Args:
        feature: The sequence.
        config: The run.
        number: Which of its columns.
    """

    counts_times = True
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

    def label(self, origin: str) -> str:
        """Returns the name of its column, for errors."""
        return f"{origin}: column {self.column!r} (of {self.used_by})"

    @property
    def lookups(self) -> list[FeatureSpec]:
        """Nothing: it looks up no single id."""
        return []

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

    def start(
        self, origin: str, codecs: Sequence[Codec[Any]], *, settle: bool = True
    ) -> CountFit | KindFit:
        """Returns what counts ids, or finds their kind: in text, what it looks like."""
        return super().start(origin, codecs, settle=settle)

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
        [(ids_V, offsets, _)] = self.encode(table, rules, origin).lists
        id_map = self.ids(rules)
        return [
            LookedUp(
                ids=id_map.rows(ids_V),
                offsets=offsets,
                num_rows=id_map.num_rows,
                weights=np.ones(len(ids_V)),
                is_list=True,
            )
        ]

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
