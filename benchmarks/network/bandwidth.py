"""What a link between hosts carries, beside what it was set to."""

import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.network.namespaces import GBIT
from benchmarks.network.world import World
from benchmarks.racing.clock import time_on_all_ranks

ROUNDS = 5
SECONDS = 0.1  # that one exchange should take


def host_bandwidth(*, gbits: float, per_host: int) -> dict[str, Any]:
    """Inside a rank: Gbit/s that leave each host in all-to-alls.

    Args:
        gbits: What the links are set to, by which the messages are cut.
        per_host: Ranks of each host.

    Returns:
        `one_way`, from each second host to the next one, and `both_ways`, between all hosts.
    """
    ranks, here = dist.get_world_size(), dist.get_rank() // per_host
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

    def exchange() -> None:
        dist.all_to_all_single(received, message, come, leave)

    return statistics.median([time_on_all_ranks(exchange) for _ in range(ROUNDS)][1:])


def check_bandwidth(world: World, gbits: float) -> dict[str, float]:
    """Sets the links to a rate, and says what they carry, in Gbit/s: see `host_bandwidth`."""
    world.network.shape(gbits)
    return world.ranks.ask("bandwidth", gbits=gbits, per_host=world.per_host)
