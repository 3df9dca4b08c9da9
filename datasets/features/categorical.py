"""Categorical features: one id a row."""

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from mmoe.config import CategoricalFeature
from mmoe.datasets.features.codec import Coded, LookedUp, Rules
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.rows.locations import find_column, times_of


class CategoricalCodec(IdCodec[CategoricalFeature]):
    """Codec of a column of ids."""

    counts_times = True
    by_cell = True

    def label(self, origin: str) -> str:
        """Returns the name of its column, for errors."""
        return f"{origin}: column {self.feature.source_column!r} (of {self.used_by})"

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Counts the ids of more training rows."""
        fit.add(self._column(table, origin), times_of(table))

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: ids, one column."""
        column = self._column(table, origin)
        return Coded(ids=[self.ids(rules).lookup(column, self.label(origin))])

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Returns its ids, with their rank among those of training."""
        if self.feature.source_column in numbers:
            return []
        [ids_N] = self.encode(table, rules, origin).ids
        id_map = self.ids(rules)
        return [LookedUp.single(id_map.rows(ids_N), id_map.num_rows, id_map.rank())]

    def _column(self, table: pa.Table, origin: str) -> pa.ChunkedArray:
        return find_column(table, self.feature.source_column, origin, self.used_by)
