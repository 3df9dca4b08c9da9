"""TorchRec's collections: of tables that are pooled, and of those whose rows stay events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from torchrec.modules.embedding_configs import DataType

from mmoe.config import FeatureSpec, ParallelConfig, TableSpec
from mmoe.embeddings.names import module_name

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
