"""Any number of ids a row, with a weight for each if there are."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import FeatureSpec, ListFeature
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules
from mmoe.datasets.features.fit_ids import CountFit, KindFit
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.ragged import fill_empty, ids_with_missing
from mmoe.datasets.features.weighted_lists import list_ids


class ListCodec(IdCodec[ListFeature]):
    """A column of lists, and perhaps one of their weights."""

    # How files say it, and how much of it is read
    free = IdCodec.free | {"separator", "weights", "weight_separator", "max_length", "keep"}

    def label(self, origin: str) -> str:
        """Its column of ids."""
        return f"{origin}: column {self.feature.source_column!r} (of {self.used_by})"

    @property
    def lookups(self) -> list[FeatureSpec]:
        """Nothing with one id a row."""
        return []

    @property
    def lists(self) -> list[FeatureSpec]:
        """Itself."""
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
        """As for single ids; those cut out of text have the type that they look like."""
        return super().start(origin, codecs, settle=settle)

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """More training rows."""
        fit.add(list_ids(table, self.feature, origin).values)

    def check(self, table: pa.Table, origin: str) -> None:
        """Are its weights good?"""
        if self.feature.weighted:
            list_ids(table, self.feature, origin)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Ids and weights; an empty list has the id 0 with weight 1."""
        ragged = list_ids(table, self.feature, origin)
        weights_V = ragged.weights
        if weights_V is not None:
            weights_V = fill_empty(weights_V, ragged.offsets, 1)
        ids_V = self.ids(rules).lookup(ragged.values, self.label(origin))
        return Coded(lists=[(*ids_with_missing(ids_V, ragged.offsets), weights_V)])

    def meaning(self) -> dict[str, object]:
        """Weighted lists are pooled otherwise; in which column weights stand does not matter."""
        return super().meaning() | {"weighted": self.feature.weighted}

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Ids with their weights; trees take the number of ids."""
        if self.feature.source_column in numbers:
            return []
        [(ids_V, offsets, weights_V)] = self.encode(table, rules, origin).lists
        return [
            LookedUp(
                ids=self.rows(ids_V, rules),
                offsets=offsets,
                num_rows=self.ids(rules).num_rows,
                weights=np.ones(len(ids_V)) if weights_V is None else weights_V.astype(np.float64),
                is_list=True,
            )
        ]
