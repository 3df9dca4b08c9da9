"""TorchRec's collections, pooled or of rows that stay events, and lookups in both together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)
from torchrec.modules.embedding_configs import DataType

from mmoe.config import FeatureSpec, ParallelConfig, TableSpec
from mmoe.embeddings.backend import module_name
from mmoe.embeddings.lookups import (
    Bags,
    Block,
    Lookups,
    arrange,
    arrangement,
    divide_by_length,
    lengths_of_events,
    split_bags,
)
from mmoe.ops.row_sums import jagged_sum

_PRECISIONS = {"fp32": DataType.FP32, "fp16": DataType.FP16}


def tables_of_events(features: Sequence[FeatureSpec]) -> set[str]:
    """Names the tables that a feature with pooling none looks up."""
    return {feature.table for feature in features if feature.pooling == "none"}


class Collections(nn.Module):
    """Tables that are pooled beside those whose rows stay events, a collection for each width.

    Args:
        tables: Rows and widths.
        features: All of them.
        parallel: Precision of the tables.

    Attributes:
        bags: The pooled ones; None: there is none.
        rows: By width the others, which TorchRec wants of one width in a collection.
    """

    bags: EmbeddingBagCollection | None

    def __init__(
        self, tables: Sequence[TableSpec], features: Sequence[FeatureSpec], parallel: ParallelConfig
    ) -> None:
        super().__init__()
        of_events = tables_of_events(features)
        pooled = [table for table in tables if table.name not in of_events]
        self.bags = pooled_collection(pooled, features, parallel) if pooled else None
        widths = sorted({table.dim for table in tables if table.name in of_events})
        self.rows = nn.ModuleDict(
            {
                str(width): _row_collection(
                    [t for t in tables if t.name in of_events and t.dim == width],
                    features,
                    parallel,
                )
                for width in widths
            }
        )

    def forward(
        self, bag_ids: KeyedJaggedTensor | None, row_ids: Mapping[str, KeyedJaggedTensor]
    ) -> tuple[Any, dict[str, Any]]:
        """Looks all of them up: pooled ones as a KeyedTensor to wait for, others by their name.

        Args:
            bag_ids: Of features of the pooled tables; None: there is none.
            row_ids: By width those of the others.
        """
        pooled = None if self.bags is None else self.bags(bag_ids)
        found = [self.rows[width](ids) for width, ids in row_ids.items()]
        rows = {name: jagged for one in found for name, jagged in _waited(one).items()}
        return (None if pooled is None else _waited(pooled)), rows


def sharded_collections(module: nn.Module) -> Iterator[Any]:
    """Yields TorchRec's collections of a sharded module: itself, or those of `Collections`."""
    if not isinstance(module, Collections):
        yield module
        return
    if module.bags is not None:
        yield module.bags
    yield from module.rows.values()


def pooled_collection(
    tables: Sequence[TableSpec], features: Sequence[FeatureSpec], parallel: ParallelConfig
) -> EmbeddingBagCollection:
    """Makes the collection of tables that are pooled, without memory."""
    collection = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(pooling=PoolingType.SUM, **_table(table, features, parallel))
            for table in tables
        ],
        is_weighted=any(feature.weighted for feature in features),
    )
    _set_rates(tables, collection.embedding_bags)
    return collection


def _row_collection(
    tables: Sequence[TableSpec], features: Sequence[FeatureSpec], parallel: ParallelConfig
) -> EmbeddingCollection:
    collection = EmbeddingCollection(
        device=torch.device("meta"),
        tables=[EmbeddingConfig(**_table(table, features, parallel)) for table in tables],
    )
    _set_rates(tables, collection.embeddings)
    return collection


def _set_rates(tables: Sequence[TableSpec], modules: nn.ModuleDict) -> None:
    for table in tables:
        # Where TorchRec looks for settings of one table; those that agree share a kernel call
        weight: Any = modules[module_name(table.name)].weight
        if table.frozen:  # w -= 0 · g, without state
            weight._optimizer_kwargs = [{"learning_rate": 0.0, "optimizer": EmbOptimType.EXACT_SGD}]
        elif table.learning_rate is not None:
            weight._optimizer_kwargs = [{"learning_rate": table.learning_rate}]


def _waited(found: Any) -> Any:
    return found.wait() if hasattr(found, "wait") else found


def _table(
    table: TableSpec, features: Sequence[FeatureSpec], parallel: ParallelConfig
) -> dict[str, Any]:
    """Describes a table to TorchRec, pooled or not."""
    return {
        "name": module_name(table.name),
        "num_embeddings": table.num_rows,
        "embedding_dim": table.dim,
        "feature_names": [f.name for f in features if f.table == table.name],
        "data_type": _PRECISIONS[parallel.placement(table.name).precision or "fp32"],
    }


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
