"""TorchRec's sharder with the shardings that it keeps for GPUs."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
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
from torchrec.distributed.types import Awaitable, NoWait, ShardingType

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


class SumOverRanks(nn.Module):
    """Sums pooled embeddings over gloo ranks, for TorchRec's `PooledEmbeddingsReduceScatter`.

    Every rank of the group has looked up the rows it holds, for the batches of all; rank r gets the
    sum over the ranks of what belongs to its batch, `out_BD = Σ_w p_w[rows of r]`. Gloo has no
    reduce-scatter of its own (torch's adds up everything everywhere and cuts), and none whose
    gradient takes batches of different heights; all-to-all does both with the fewest bytes, and
    adds in the order of the ranks, so that a step repeats to the bit.

    Args:
        group: The ranks that hold rows of the same tables.

    Source: TorchRec, `torchrec.distributed.dist_data.PooledEmbeddingsReduceScatter`.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(
        self, partial_AD: Tensor, input_splits: Sequence[int] | None = None
    ) -> Awaitable[Tensor]:
        """Returns the sum for this rank's batch.

        Args:
            partial_AD: This rank's share for the batches of all ranks, one under another.
            input_splits: Heights of the batches; None: they are equal.
        """
        heights = input_splits or [len(partial_AD) // self.group.size()] * self.group.size()
        return NoWait(_Exchange.apply(partial_AD, list(heights), self.group))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, partial_AD: Tensor, heights: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.heights, ctx.group = heights, group
        own, ranks = heights[group.rank()], group.size()
        received_WBD = partial_AD.new_empty(ranks, own, partial_AD.shape[1])
        dist.all_to_all_single(
            received_WBD.view(ranks * own, -1),
            partial_AD.contiguous(),
            [own] * ranks,
            heights,
            group=group,
        )
        return received_WBD.sum(dim=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad_BD,) = grads
        own, ranks = len(grad_BD), ctx.group.size()
        grads_AD = grad_BD.new_empty(sum(ctx.heights), grad_BD.shape[1])
        dist.all_to_all_single(
            grads_AD, grad_BD.repeat(ranks, 1), ctx.heights, [own] * ranks, group=ctx.group
        )
        return grads_AD, None, None
