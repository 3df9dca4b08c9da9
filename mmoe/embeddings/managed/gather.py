"""Ids of all ranks on every rank."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def gather_ids(ids: Sequence[Tensor]) -> list[Tensor]:
    """Gathers the ids of all ranks: each feature's as with all of them, rank after rank.

    All ranks call it together, each with as many tensors, of any length.

    Args:
        ids: int64 [V] each, on one device.

    Returns:
        As many, int64 [ΣV]; the same on every rank. One process gets its own back.
    """
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks == 1 or not ids:
        return list(ids)
    own_P = torch.tensor([len(one) for one in ids], device=ids[0].device)
    sizes_WP = [torch.empty_like(own_P) for _ in range(ranks)]
    dist.all_gather(sizes_WP, own_P)
    sizes = [sizes_P.tolist() for sizes_P in sizes_WP]
    # Gloo gathers tensors of one length only
    own_L = own_P.new_zeros(max(map(sum, sizes)))
    own_L[: int(own_P.sum())] = torch.cat(list(ids))
    received_WL = [torch.empty_like(own_L) for _ in range(ranks)]
    dist.all_gather(received_WL, own_L)
    by_rank = [
        got_L[: sum(counts)].split(counts) for got_L, counts in zip(received_WL, sizes, strict=True)
    ]
    return [torch.cat(of_ranks) for of_ranks in zip(*by_rank, strict=True)]
