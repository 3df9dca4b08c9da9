"""Ranks on the hosts of a network: `h` hosts of `r` ranks each, rank `i` on host `i // r`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.network.namespaces import DEVICE, HostNetwork, host_network
from benchmarks.racing.ranks import Ranks, Seat


@dataclass(frozen=True)
class World:
    """Ranks that run, and the links between their hosts.

    Attributes:
        ranks: Answer commands, see `benchmarks.network.rank`.
        network: May be shaped between two commands.
        per_host: Ranks of a host.
    """

    ranks: Ranks
    network: HostNetwork
    per_host: int

    @property
    def size(self) -> int:
        """W."""
        return self.network.hosts * self.per_host

    @property
    def name(self) -> str:
        """As in tables: hosts × ranks of each."""
        return f"{self.network.hosts} × {self.per_host}"

    @property
    def shares_cores(self) -> bool:
        """Whether ranks outnumber cores, so that some have one together."""
        return self.size > len(os.sched_getaffinity(0))


@contextmanager
def network_world(hosts: int, per_host: int, gbits: float) -> Iterator[World]:
    """Builds hosts and starts ranks on them; ends both, whatever happens.

    Args:
        hosts: How many.
        per_host: Ranks of each.
        gbits: Rate of a host's link, in Gbit/s.

    Raises:
        NothingToMeasure: This machine cannot have such hosts.
    """
    with host_network(hosts) as network:
        network.shape(gbits)
        ranks = Ranks(
            f"layers on {hosts} × {per_host} ranks",
            "benchmarks.network.rank",
            "",
            ranks=hosts * per_host,
            seats=seats(network, per_host),
        )
        try:
            ranks.wait_until_ready()
            yield World(ranks, network, per_host)
        finally:
            ranks.close()


def seats(network: HostNetwork, per_host: int) -> list[Seat]:
    """Where each rank runs, and what torchrun would say to it there."""
    return [
        Seat(
            before=network.inside(host),
            variables={
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(per_host),
                "GROUP_RANK": str(host),
                "GROUP_WORLD_SIZE": str(network.hosts),
                "MASTER_ADDR": network.address(0),
                "GLOO_SOCKET_IFNAME": DEVICE,
            },
        )
        for host in range(network.hosts)
        for local in range(per_host)
    ]
