"""What a link between hosts carries, beside what it was set to."""

import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.network.namespaces import GBIT
from benchmarks.network.world import World

ROUNDS = 5
SECONDS = 0.1  # that one exchange should take


def host_bandwidth(*, gbits: float) -> dict[str, Any]:
    """Inside a rank: Gbit/s that leave each host in an all-to-all between the ranks of all hosts.

    Args:
        gbits: What the links are set to, by which the messages are cut.
    """
    ranks, per_host = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    host = dist.get_rank() // per_host
    others = ranks - per_host
    each = int(gbits * GBIT * SECONDS / (per_host * others))
    # Both directions alike, and nothing inside a host
    sizes = [0 if other // per_host == host else each for other in range(ranks)]
    sent, received = (torch.zeros(sum(sizes), dtype=torch.uint8) for _ in range(2))
    seconds = []
    for _ in range(ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        dist.all_to_all_single(received, sent, sizes, sizes)
        took = torch.tensor(time.perf_counter() - started)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        seconds.append(float(took))
    return {"gbits": per_host * others * each / statistics.median(seconds[1:]) / GBIT}


def check_bandwidth(world: World, gbits: float) -> float:
    """Sets the links to a rate, and says what they carry, in Gbit/s."""
    world.network.shape(gbits)
    return world.ranks.ask("bandwidth", gbits=gbits)["gbits"]
