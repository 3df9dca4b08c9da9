"""Lookups where the rows of some tables stay events."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from mmoe.config import FeatureSpec, TableSpec
from mmoe.embeddings.lookups import Bags, Lookups, divide_by_length, lengths_of_events, split_bags
from mmoe.embeddings.sharded.arrange import Block, arrange, arrangement
from mmoe.embeddings.sharded.collections import tables_of_events
from mmoe.ops.row_sums import jagged_sum


class UnpooledLookups:
    """Asks `Collections` for a batch's ids, and puts what it answers in the features' order.

    A table that a sequence reads answers with a row for each id, also to the features that pool
    them: these are added up here.

    Args:
        tables: Rows and widths.
        features: In the order of the output.
    """

    def __init__(self, tables: Sequence[TableSpec], features: Sequence[FeatureSpec]) -> None:
        of_events = tables_of_events(features)
        self.features = list(features)
        self.dims = {table.name: table.dim for table in tables}
        self.bags = [c for c, f in enumerate(features) if f.table not in of_events]
        self.rows: dict[str, list[int]] = {}
        for c, feature in enumerate(features):
            if feature.table in of_events:
                self.rows.setdefault(str(self.dims[feature.table]), []).append(c)
        self._blocks: list[Block] | None = None

    def look_up(
        self,
        collections: torch.nn.Module,
        values: Tensor,
        lengths_CB: Tensor,
        id_weights: Tensor | None,
    ) -> Lookups:
        """Looks up a batch of one row at least."""
        bags = split_bags(self.features, values, lengths_CB, id_weights)
        bag_ids = self._ids(self.bags, bags, self._weights(bags)) if self.bags else None
        row_ids = {width: self._ids(of, bags, None) for width, of in self.rows.items()}
        pooled, rows = collections(bag_ids, row_ids)
        parts: dict[int, Tensor] = {}
        if bag_ids is not None:
            parts |= self._pooled_parts(pooled, bag_ids)
        events = []
        for c, feature in enumerate(self.features):
            if c in parts:
                continue
            e_VD = rows[feature.name].values()
            if feature.pooling == "none":
                events.append(e_VD)
                continue
            sums_BD = jagged_sum(e_VD, bags[c].lengths_B, bags[c].weights_V)
            mean = feature.pooling == "mean"
            parts[c] = divide_by_length(sums_BD, bags[c].lengths_B) if mean else sums_BD
        columns = [parts[c] for c in sorted(parts)]
        none_B0 = values.new_zeros(len(bags[0].lengths_B), 0, dtype=torch.float32)
        x_BD = columns[0] if len(columns) == 1 else torch.cat(columns or [none_B0], dim=1)
        return Lookups(x_BD, tuple(events), lengths_of_events(self.features, lengths_CB))

    def _ids(
        self, features: Sequence[int], bags: Sequence[Bags], weights: Tensor | None
    ) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=[self.features[c].name for c in features],
            values=torch.cat([bags[c].ids_V for c in features]),
            lengths=torch.cat([bags[c].lengths_B for c in features]).int(),
            weights=weights,
        )

    def _weights(self, bags: Sequence[Bags]) -> Tensor | None:
        """Returns weights of pooled ids; a collection is weighted if any feature of the run is."""
        if not any(feature.weighted for feature in self.features):
            return None
        return torch.cat(
            [
                torch.ones_like(bag.ids_V, dtype=torch.float32)
                if bag.weights_V is None
                else bag.weights_V
                for bag in (bags[c] for c in self.bags)
            ]
        )

    def _pooled_parts(self, pooled: KeyedTensor, ids: KeyedJaggedTensor) -> dict[int, Tensor]:
        """Columns of each feature of the pooled tables."""
        features = [self.features[c] for c in self.bags]
        dims = [self.dims[feature.table] for feature in features]
        if self._blocks is None:
            self._blocks = arrangement(features, dims, pooled.keys())
        x_BD = arrange(pooled.values(), ids.lengths(), self._blocks)
        return dict(zip(self.bags, x_BD.split(dims, dim=1), strict=True))
