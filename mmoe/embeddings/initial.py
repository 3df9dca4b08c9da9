"""What a row holds before it has learnt anything."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor


@torch.no_grad()
def fill_tables(weights: Mapping[str, Tensor], seed: int) -> None:
    """Each table from its own generator, so that adding a table changes no other."""
    for name, weight in weights.items():
        weight.copy_(_uniform(weight.shape, weight.shape[0], f"{seed} {name}"))
        weight[:2] = 0


def fresh_rows(count: int, weight: Tensor, key: str) -> Tensor:
    """`count` rows as `fill_tables` makes them for the table `weight`; another key, other rows."""
    return _uniform(torch.Size((count, weight.shape[1])), weight.shape[0], key)


def _uniform(shape: torch.Size, rows: int, key: str) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    bound = rows**-0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
