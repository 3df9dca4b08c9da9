"""Hosts with a slow network between them: namespaces of this machine, and ranks in them."""

import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.racing.harness import NothingToMeasure, time_on_all_ranks
from benchmarks.racing.ranks import Ranks, Seat

# Hosts on one machine: a network namespace each, joined by a switch over links with a rate

PREFIX = "mmoe-net"
DEVICE = "eth"
SWITCH = "switch"
# Names of namespaces, where iproute2 keeps them
NAMED = Path("/run/netns")
GBIT = 1e9 / 8  # bytes/s
# Packets of at most so many seconds of the link: what an idle one may send at once
PACKET_SECONDS = 0.25e-3
SMALLEST_PACKET, LARGEST_PACKET = 8 << 10, 60 << 10  # bytes; headers come on top
HEADERS = 4 << 10
MTU = "9000"  # bytes, as in clusters: less of the rate is spent on headers
# Waiting room of a link: senders are held back by their own sockets long before it is full
QUEUE_BYTES = 256 << 20
# A connection may use the whole link at once: there is nobody else on it
TCP = {
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
}


def why_not() -> str | None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)}: install iproute2"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    name = f"{PREFIX}-{os.getpid()}-try"
    try:
        _run("ip", "netns", "add", name)
    except NothingToMeasure as error:
        return str(error)
    _delete(name)
    return None


@dataclass(frozen=True)
class HostNetwork:
    """Hosts that reach each other."""

    hosts: int
    # What their namespaces' names begin with
    name: str = field(default_factory=lambda: f"{PREFIX}-{os.getpid()}")
    notes: list[str] = field(default_factory=list)  # What this kernel could not do

    def namespace(self, host: int) -> str:
        return f"{self.name}-h{host}"

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def inside(self, host: int) -> tuple[str, ...]:
        """What a command begins with that is to run on a host."""
        return ("ip", "netns", "exec", self.namespace(host))

    def shape(self, gbits: float, delay_ms: float = 0.0) -> None:
        """Gives every host's link a rate, and a delay where the kernel has netem."""
        rate = gbits * GBIT
        packet = round(min(max(rate * PACKET_SECONDS, SMALLEST_PACKET), LARGEST_PACKET))
        # Fast links send several packets each time that the timer of tbf wakes up
        burst = max(packet, round(rate * PACKET_SECONDS)) + HEADERS
        limits = f"rate {rate:.0f}bps burst {burst} limit {QUEUE_BYTES}".split()
        for host in range(self.hosts):
            on_host = ("-n", self.namespace(host))
            _run("ip", *on_host, "link", "set", DEVICE, "gso_max_size", str(packet))
            _run("tc", *on_host, "qdisc", "replace", "dev", DEVICE, "root", "tbf", *limits)
            # What waits for the link is little: else the first bytes of one connection, a rank's
            # sizes, would stand behind the rows of all others
            self._sysctl(host, "net.ipv4.tcp_limit_output_bytes", str(2 * packet))
        self._delay(delay_ms)

    def _delay(self, delay_ms: float) -> None:
        """On the switch's side, where what waits is no longer the sender's."""
        if not delay_ms:
            return
        for host in range(self.hosts):
            netem = f"root netem delay {delay_ms}ms limit 1000000".split()
            switch = ("-n", f"{self.name}-{SWITCH}", "qdisc", "replace", "dev", f"port{host}")
            try:
                _run("tc", *switch, *netem)
            except NothingToMeasure:
                self.notes.append("this kernel has no netem: links have a rate, and no delay")
                return

    def build(self) -> None:
        switch = f"{self.name}-{SWITCH}"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "mtu", MTU, "up")
        for host in range(self.hosts):
            self._add_host(host, switch)

    def _add_host(self, host: int, switch: str) -> None:
        name, port = self.namespace(host), f"port{host}"
        _run("ip", "netns", "add", name)
        pair = f"link add {port} type veth peer name {DEVICE} netns {name}".split()
        _run("ip", "-n", switch, *pair)
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", DEVICE)
        _run("ip", "-n", switch, "link", "set", port, "mtu", MTU)
        _run("ip", "-n", name, "link", "set", DEVICE, "mtu", MTU, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        for key, value in TCP.items():
            self._sysctl(host, key, value)

    def _sysctl(self, host: int, key: str, value: str) -> None:
        with suppress(NothingToMeasure):  # a kernel without it has its own way
            _run(*self.inside(host), "sysctl", "-q", "-w", f"{key}={value}")

    def remove(self) -> None:
        for name in _named(self.name):
            _delete(name)


@contextmanager
def host_network(hosts: int) -> Iterator[HostNetwork]:
    _remove_leftovers()
    network = HostNetwork(hosts)
    try:
        network.build()
        yield network
    finally:
        network.remove()


def _remove_leftovers() -> None:
    """Namespaces of processes that were killed before they could remove them."""
    for name in _named(PREFIX):
        owner = name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if owner.isdigit() and (int(owner) == os.getpid() or not Path(f"/proc/{owner}").exists()):
            _delete(name)


def _named(prefix: str) -> list[str]:
    if not NAMED.is_dir():
        return []
    return sorted(path.name for path in NAMED.iterdir() if path.name.startswith(f"{prefix}-"))


def _delete(name: str) -> None:
    with suppress(NothingToMeasure):
        _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    """A command; what went wrong with it is a reason not to measure."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NothingToMeasure(f"{command[0]}: {error}") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["failed"])[0]
        raise NothingToMeasure(f"{' '.join(command)}: {said}")


# Ranks on the hosts of a network: `h` hosts of `r` ranks each, rank `i` on host `i // r`


@dataclass(frozen=True)
class World:
    """Ranks that run, and the links between their hosts."""

    ranks: Ranks  # Answer commands, see `benchmarks.racing.spread`
    network: HostNetwork  # May be shaped between two commands
    per_host: int  # Ranks of a host

    @property
    def size(self) -> int:
        return self.network.hosts * self.per_host

    @property
    def name(self) -> str:
        return f"{self.network.hosts} × {self.per_host}"

    @property
    def shares_cores(self) -> bool:
        return self.size > len(os.sched_getaffinity(0))


@contextmanager
def network_world(hosts: int, per_host: int, gbits: float) -> Iterator[World]:
    """Builds hosts and starts ranks on them; ends both, whatever happens."""
    with host_network(hosts) as network:
        network.shape(gbits)
        with Ranks(
            f"layers on {hosts} × {per_host} ranks",
            "benchmarks.racing.spread",
            "",
            ranks=hosts * per_host,
            seats=seats(network, per_host),
        ) as ranks:
            yield World(ranks, network, per_host)


def seats(network: HostNetwork, per_host: int) -> list[Seat]:
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


# What a link between hosts carries, beside what it was set to

ROUNDS = 5
SECONDS = 0.1  # that one exchange should take


def host_bandwidth(*, gbits: float, per_host: int) -> dict[str, Any]:
    """Inside a rank: Gbit/s that leave each host in all-to-alls.

    Returns `one_way`, from each second host to the next one, and `both_ways`, between all hosts.
    """
    ranks, here = dist.get_world_size(), dist.get_rank() // per_host
    hosts = [other // per_host for other in range(ranks)]
    size = gbits * GBIT * SECONDS / per_host
    there = [size / per_host if here % 2 == 0 and host == here + 1 else 0 for host in hosts]
    back = [size / per_host if here % 2 == 1 and host == here - 1 else 0 for host in hosts]
    every = [0 if host == here else size / (ranks - per_host) for host in hosts]
    sent = per_host * size / GBIT
    return {"one_way": sent / _seconds(there, back), "both_ways": sent / _seconds(every, every)}


def _seconds(send: Sequence[float], receive: Sequence[float]) -> float:
    leave, come = [[int(size) for size in sizes] for sizes in (send, receive)]
    message, received = (torch.zeros(sum(sizes), dtype=torch.uint8) for sizes in (leave, come))

    def exchange() -> None:
        dist.all_to_all_single(received, message, come, leave)

    return statistics.median([time_on_all_ranks(exchange) for _ in range(ROUNDS)][1:])


def check_bandwidth(world: World, gbits: float) -> dict[str, float]:
    """Sets the links to a rate, and says what they carry, in Gbit/s: see `host_bandwidth`."""
    world.network.shape(gbits)
    return world.ranks.ask("bandwidth", gbits=gbits, per_host=world.per_host)
