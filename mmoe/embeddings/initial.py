"""Initial values of rows of embeddings."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from mmoe.parallel import Shard, Sharded, local_shards

# Numbers drawn at a time (16 MiB): a table is never held whole beside its shards
_DRAWN = 2**22


@torch.no_grad()
def fill_tables(
    tables: Mapping[str, Sharded], seed: int, scales: Mapping[str, float] | None = None
) -> None:
    """Fills each table from its own generator, so that adding a table changes no other.

    A shard of a table gets the numbers that it has in the whole one, however it is cut. `scales`
    multiply the range of the tables that they name.
    """
    for name, table in tables.items():
        shards = local_shards(table)
        if shards:
            _fill(shards, f"{seed} {name}", (scales or {}).get(name, 1.0))


def fresh_rows(count: int, shape: tuple[int, ...], key: str) -> Tensor:
    """Makes `count` rows as `fill_tables` does for a table [rows, dim]; another key, other rows."""
    generator, bound = _source(shape[0], key)
    return torch.empty(count, shape[1]).uniform_(-bound, bound, generator=generator)


def _fill(shards: list[Shard], key: str, scale: float) -> None:
    rows, dim = shards[0].shape
    generator, bound = _source(rows, key)
    bound *= scale
    last = max(shard.region[0].stop for shard in shards)
    height = max(2, _DRAWN // dim)  # the first block has both rows that are zeros
    for start in range(0, last, height):
        # Blocks of one generator, drawn one after another, are the table drawn at once
        block_HD = torch.empty(min(height, rows - start), dim)
        block_HD.uniform_(-bound, bound, generator=generator)
        if start == 0:
            block_HD[:2] = 0  # of missing and unseen ids
        for shard in shards:
            _copy_rows(block_HD, start, shard)


def _copy_rows(block_HD: Tensor, start: int, shard: Shard) -> None:
    """The part of rows [start, start + H) of the whole that belongs to a shard."""
    rows, columns = shard.region
    first, end = max(start, rows.start), min(start + len(block_HD), rows.stop)
    if first < end:
        found = block_HD[first - start : end - start, columns]
        shard.tensor[first - rows.start : end - rows.start] = found


def _source(rows: int, key: str) -> tuple[torch.Generator, float]:
    return torch.Generator().manual_seed(zlib.crc32(key.encode())), rows**-0.5
