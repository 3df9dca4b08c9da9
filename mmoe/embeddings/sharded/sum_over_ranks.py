"""Sums of looked-up rows that lie on several ranks, where the backend cannot reduce and scatter."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.types import Awaitable, NoWait


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
            grads_AD,
            grad_BD.repeat(ranks, 1),
            ctx.heights,
            [own] * ranks,
            group=ctx.group,
        )
        return grads_AD, None, None
