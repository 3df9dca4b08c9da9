"""TorchRec's sharder with the shardings that it keeps for GPUs."""

from typing import Any

import torch.distributed as dist
from torchrec import EmbeddingBagCollection
from torchrec.distributed.dist_data import PooledEmbeddingsAllToAll
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingDist
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist
from torchrec.distributed.types import ShardingType

from mmoe.embeddings.sharded.sum_over_ranks import SumOverRanks

_SHARDINGS = [
    ShardingType.DATA_PARALLEL.value,
    ShardingType.TABLE_WISE.value,
    ShardingType.COLUMN_WISE.value,
    ShardingType.TABLE_COLUMN_WISE.value,
    ShardingType.ROW_WISE.value,
    ShardingType.TABLE_ROW_WISE.value,
    ShardingType.GRID_SHARD.value,
]
# Those that leave an id's row whole, or cut it by columns, on one rank
SHARDINGS_OF_EVENTS = ("data_parallel", "table_wise", "column_wise", "row_wise")


class RowSharder(EmbeddingCollectionSharder):
    """TorchRec's sharder of tables whose rows stay events, with rows over ranks on the CPU too."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Lists all ways to shard."""
        return list(SHARDINGS_OF_EVENTS)


class TableSharder(EmbeddingBagCollectionSharder):
    """TorchRec's sharder, with rows over ranks on the CPU too.

    TorchRec lists row-wise, table-row-wise and grid for GPUs alone, because they end in a
    reduce-scatter, which gloo lacks; where the ranks talk by gloo, `SumOverRanks` is put there.
    """

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Lists all ways to shard."""
        return _SHARDINGS

    def shard(
        self, module: EmbeddingBagCollection, *others: Any, **settings: Any
    ) -> ShardedEmbeddingBagCollection:
        """Returns the module spread over ranks, as TorchRec calls for it."""
        sharded = super().shard(module, *others, **settings)
        if dist.get_backend() == "gloo":
            for output in sharded._output_dists:
                _sum_by_all_to_all(output)
        return sharded


def _sum_by_all_to_all(output: Any) -> None:
    """Before the first batch, at which TorchRec makes the reduce-scatter where there is none."""
    if isinstance(output, RwPooledEmbeddingDist):
        output._dist = SumOverRanks(output._pg)  # type: ignore[assignment]
    elif isinstance(output, TwRwPooledEmbeddingDist | GridPooledEmbeddingDist):
        output._intra_dist = SumOverRanks(output._intra_pg)  # type: ignore[assignment]
        output._cross_dist = PooledEmbeddingsAllToAll(
            pg=output._cross_pg,
            dim_sum_per_rank=output._dim_sum_per_node,
            device=output._device,
            callbacks=getattr(output, "_callbacks", None),
        )
