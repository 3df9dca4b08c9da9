"""How one rank of a gloo world joins the others; for the scripts that tests run as ranks."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

# Seconds after which a rank that waits for another gives up
PATIENCE = 60


def join_world(rank: int, ranks: int, store: str | Path) -> None:
    """Meets the others at the file `store`; each rank computes on one thread."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE),
    )


def shared_out(
    cases: Mapping[str, Any],
    alone: Callable[[Any], Any],
    of_one: Callable[[Any], Hashable] = id,
) -> dict[str, Any]:
    """What one process computes of each case: every rank does its share, and gets them all.

    Args:
        of_one: What of a case one process can tell; cases that are alike in it are computed once.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    same = {name: of_one(case) for name, case in cases.items()}
    first = {key: name for name, key in reversed(same.items())}
    mine = {name: alone(cases[name]) for name in list(first.values())[rank::ranks]}
    parts: list[dict[str, Any]] = [{}] * ranks
    dist.all_gather_object(parts, mine)
    found = {name: of_case for part in parts for name, of_case in part.items()}
    return {name: found[first[key]] for name, key in same.items()}


@contextmanager
def one_group() -> Iterator[None]:
    """Lets all groups of all ranks be one: to make one takes longer than to train a case."""
    new_group, group = dist.new_group, dist.new_group(timeout=timedelta(seconds=PATIENCE))

    def make(ranks=None, **_):
        return group if ranks is None else new_group(ranks)

    with patch.object(dist, "new_group", make):
        yield
