"""What a link between hosts carries, beside what it was set to."""

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.network.namespaces import GBIT
from benchmarks.network.world import World

ROUNDS = 5
SECONDS = 0.1  # that one exchange should take


def host_bandwidth(*, gbits: float) -> dict[str, Any]:
    """Inside a rank: Gbit/s that leave each host in all-to-alls.

    Args:
        gbits: What the links are set to, by which the messages are cut.

    Returns:
        `one_way`, from each second host to the next one, and `both_ways`, between all hosts.
    """
    ranks, per_host = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    here = dist.get_rank() // per_host
    hosts = [other // per_host for other in range(ranks)]
    size = gbits * GBIT * SECONDS / per_host
    there = [size / per_host if here % 2 == 0 and host == here + 1 else 0 for host in hosts]
    back = [size / per_host if here % 2 == 1 and host == here - 1 else 0 for host in hosts]
    every = [0 if host == here else size / (ranks - per_host) for host in hosts]
    sent = per_host * size / GBIT
    return {
        "one_way": sent / _seconds(there, back),
        "both_ways": sent / _seconds(every, every),
    }


def _seconds(send: Sequence[float], receive: Sequence[float]) -> float:
    """Of an all-to-all of so many bytes, until the last rank is done."""
    leave, come = [[int(size) for size in sizes] for sizes in (send, receive)]
    message, received = (torch.zeros(sum(sizes), dtype=torch.uint8) for sizes in (leave, come))
    found = []
    for _ in range(ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        dist.all_to_all_single(received, message, come, leave)
        took = torch.tensor(time.perf_counter() - started)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        found.append(float(took))
    return statistics.median(found[1:])


def check_bandwidth(world: World, gbits: float) -> dict[str, float]:
    """Sets the links to a rate, and says what they carry, in Gbit/s: see `host_bandwidth`."""
    world.network.shape(gbits)
    return world.ranks.ask("bandwidth", gbits=gbits)
