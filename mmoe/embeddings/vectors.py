"""Rows that come from elsewhere, put into a table or its shards."""

import torch
from torch import Tensor

from mmoe.parallel.sharded_tensors import Sharded, local_shards, rows_held


@torch.no_grad()
def put_rows(table: Sharded, rows_R: Tensor, values_RD: Tensor) -> None:
    """Writes rows of a whole table into the shards that this rank holds.

    Args:
        table: The table or this rank's shards of it, changed in place.
        rows_R: Numbers of rows of the whole, each once, int64 on the CPU.
        values_RD: What they hold from now on, float32 on the CPU.

    Example:
        >>> table = torch.zeros(3, 4)
        >>> put_rows(table, torch.tensor([2]), torch.ones(1, 4))
        >>> table.sum(dim=1).tolist()
        [0.0, 0.0, 4.0]
    """
    for shard, own_S, chosen_S in rows_held(local_shards(table), rows_R):
        if len(own_S):
            held = values_RD[chosen_S][:, shard.region[1]]
            shard.tensor[own_S.to(shard.tensor.device)] = held.to(shard.tensor)
