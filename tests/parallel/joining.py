"""How one rank of a gloo world joins the others; for the scripts that tests run as ranks."""

from datetime import timedelta
from pathlib import Path

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
