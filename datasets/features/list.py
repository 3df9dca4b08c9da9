"""List features: any number of ids a row, with a weight for each if there are."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import FeatureSpec, ListFeature
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules
from mmoe.datasets.features.fit_ids import CountFit, KindFit
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.ragged import Ragged, fill_empty, ids_with_missing, shortened
from mmoe.datasets.features.seen import SEEN_LENGTHS, SEEN_WEIGHTS, limits_of
from mmoe.datasets.features.weighted_lists import NO_LIMITS, list_ids
from mmoe.datasets.rows.locations import times_of

_ROUNDING = 1e-6  # of a constant that another file holds as float32


class ListCodec(IdCodec[ListFeature]):
    """Codec of a column of lists, and perhaps one of their weights."""

    counts_times = True

    # How files say it, and how much of it is read
    free = IdCodec.free | {
        "separator", "format", "weights", "weight_separator", "max_length", "keep", "outside",
        "padding", "padding_side", "length", "mask",
    }  # fmt: skip

    def label(self, origin: str) -> str:
        """Returns the name of its column of ids, for errors."""
        return f"{origin}: column {self.feature.source_column!r} (of {self.used_by})"

    @property
    def lookups(self) -> list[FeatureSpec]:
        """Nothing: it looks up no single id."""
        return []

    @property
    def lists(self) -> list[FeatureSpec]:
        """Its own name."""
        feature = self.feature
        return [
            FeatureSpec(
                name=feature.name,
                table=self.table,
                pooling="sum" if feature.weighted else feature.pooling,  # see FeatureSpec
                weighted=feature.weighted,
            )
        ]

    def start(
        self, origin: str, codecs: Sequence[Codec[Any]], *, settle: bool = True
    ) -> CountFit | KindFit:
        """Returns what counts ids, or finds their kind: in text, what it looks like."""
        return super().start(origin, codecs, settle=settle)

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Learns from more training rows."""
        ragged, times_N = self._lists(table, origin), times_of(table)
        of_ids = None if times_N is None else np.repeat(times_N, np.diff(ragged.offsets))
        fit.add(ragged.values, of_ids)
        if ragged.written is not None and len(ragged.written):
            ends = (*fit.weights, float(ragged.written.min()), float(ragged.written.max()))
            fit.weights = (min(ends), max(ends))
        if self.feature.pooling == "sum" and table.num_rows:
            lengths_N = np.diff(ragged.offsets)
            ends = (*fit.lengths, int(lengths_N.min()), int(lengths_N.max()))
            fit.lengths = (min(ends), max(ends))

    def finish_own(self, fit: Any, rules: Rules) -> None:
        """Keeps the lowest and the highest weight, and the lengths of lists that are summed."""
        for section, ends in ((SEEN_WEIGHTS, fit.weights), (SEEN_LENGTHS, fit.lengths)):
            if ends:
                rules[section][self.feature.name] = ends

    def check(self, table: pa.Table, origin: str) -> None:
        """Refuses bad weights in rows that do not train."""
        if self.feature.weighted:
            self._lists(table, origin)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: ids and weights; an empty list has the id 0 with weight 1."""
        seen = rules[SEEN_WEIGHTS].get(self.feature.name)
        limits = None if seen is None else _limits(*seen)
        clips = self.feature.outside == "clip" or (limits and limits[0] == limits[1])
        at = limits if limits is not None and clips else NO_LIMITS
        ragged = self._lists(table, origin, at)
        outside_N = None if limits is None else _outside(ragged, *limits)
        lengths = rules[SEEN_LENGTHS].get(self.feature.name)
        if lengths is not None:  # a sum over far more items than any of training
            cut, longer_N = shortened(ragged, limits_of(*lengths)[1], self.feature.keep)
            ragged = cut if self.feature.outside == "clip" else ragged
            outside_N = longer_N if outside_N is None else outside_N | longer_N
        weights_V = ragged.weights
        if weights_V is not None:
            weights_V = fill_empty(weights_V, ragged.offsets, 1)
        ids_V = self.ids(rules).lookup(ragged.values, self.label(origin))
        return Coded(
            lists=[(*ids_with_missing(ids_V, ragged.offsets), weights_V)],
            outside_N=outside_N,
        )

    def _lists(
        self, table: pa.Table, origin: str, limits: tuple[float, float] = NO_LIMITS
    ) -> Ragged:
        return list_ids(table, self.feature, origin, limits, self.config.data.missing_words)

    def meaning(self) -> dict[str, object]:
        """Returns settings to keep; in which column the weights stand does not matter."""
        return super().meaning() | {"weighted": self.feature.weighted}

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Returns ids with their weights; trees take the number of ids."""
        if self.feature.source_column in numbers:
            return []
        [(ids_V, offsets, weights_V)] = self.encode(table, rules, origin).lists
        id_map = self.ids(rules)
        return [
            LookedUp(
                ids=id_map.rows(ids_V),
                offsets=offsets,
                num_rows=id_map.num_rows,
                weights=np.ones(len(ids_V)) if weights_V is None else weights_V.astype(np.float64),
                is_list=True,
            )
        ]


def _limits(lowest: float, highest: float) -> tuple[float, float]:
    """Returns what weights are clipped to: none is negative."""
    low, high = limits_of(lowest, highest)
    return max(float(low), 0.0), float(high)


def _outside(ragged: Ragged, lowest: float, highest: float) -> np.ndarray:
    """Returns which rows have a weight beyond the limits, bool [N]."""
    assert ragged.written is not None, "there are limits of weights alone"
    room = _ROUNDING * highest
    beyond_V = (ragged.written < lowest - room) | (ragged.written > highest + room)
    row_V = np.repeat(np.arange(len(ragged.offsets) - 1), np.diff(ragged.offsets))
    return np.bincount(row_V[beyond_V], minlength=len(ragged.offsets) - 1) > 0
