"""`LinkRates`: what sending and computing cost on these ranks, measured at the start."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from mmoe.parallel.hosts import Hosts
from mmoe.parallel.launch.process_group import require_group

# Bytes of one message of a rank to all others of a kind, for the latency and for the rate; the
# largest only where the one before took no longer than `_LONG`
_SMALL, _LARGER = 1 << 10, (1 << 18, 1 << 20, 1 << 22)
_REPEATS = 4
_LONG = 0.03  # seconds
# Rows and width of the product that is timed: large enough to be at the rate of experts
_ROWS, _WIDTH = 512, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Rates and latencies, the same on every rank.

    Attributes:
        latency: Seconds of an all-to-all that carries next to nothing.
        bytes_per_second_inside: What one rank sends to others of its host.
        bytes_per_second_between: What all ranks of one host together send to other hosts.
        core_seconds_per_byte: Of a rank's own core, for a byte that it sends or gets: copies and
            system calls, which no computation hides. 0 where a device sends by itself.
        flops_per_second: Of one rank's products while all ranks compute.

    Raises:
        ValueError: A rate that is not above 0, or a time below it.

    Example:
        >>> from mmoe.parallel import LinkRates
        >>> rates = LinkRates(
        ...     latency=1e-4,
        ...     bytes_per_second_inside=2e9,
        ...     bytes_per_second_between=125e6,
        ...     core_seconds_per_byte=5e-10,
        ...     flops_per_second=1e11,
        ... )
        >>> rates.bytes_per_second_between * 8 / 1e9  # Gbit/s
        1.0
    """

    latency: float
    bytes_per_second_inside: float
    bytes_per_second_between: float
    core_seconds_per_byte: float
    flops_per_second: float

    def __post_init__(self) -> None:
        for name in ("bytes_per_second_inside", "bytes_per_second_between", "flops_per_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected more than 0, got {getattr(self, name)}")
        for name in ("latency", "core_seconds_per_byte"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: expected 0 or more, got {getattr(self, name)}")


def measure_links(hosts: Hosts, device: torch.device | None = None) -> LinkRates:
    """Times a few all-to-alls and products on all ranks at once.

    All ranks of the group must call it together, and get the same: of every time the longest
    counts. Where there is one host, or one rank on each, the kind of link that there is not counts
    as the other one.

    Args:
        hosts: How the ranks lie, and their group.
        device: Where rows lie; default: the CPU.

    Returns:
        What was measured.

    Raises:
        ValueError: No process group.

    Example:
        >>> import torch
        >>> from mmoe.parallel import Hosts, ensure_process_group, measure_links
        >>> ensure_process_group()
        >>> measure_links(Hosts.of_group()).flops_per_second > 0
        True
    """
    require_group("measure_links")
    device = device or torch.device("cpu")
    rank = dist.get_rank(hosts.group)
    here = hosts.of(rank)
    inside = [r for r in hosts.ranks_on(here) if r != rank]
    between = [r for r in range(hosts.num_ranks) if hosts.of(r) != here]
    latency, _ = _exchange(hosts, device, [*inside, *between], _SMALL)
    found = [_rate(hosts, device, peers, latency) for peers in (inside, between)]
    known = [rates for rates in found if rates] or [(float("inf"), 0.0)]
    (to_inside, core_inside), (to_between, core_between) = (rates or known[0] for rates in found)
    return LinkRates(
        latency=latency,
        bytes_per_second_inside=to_inside,
        # All ranks of a host sent at once, and shared its link
        bytes_per_second_between=to_between * (hosts.size if between else 1),
        core_seconds_per_byte=max(core_inside, core_between) if device.type == "cpu" else 0.0,
        flops_per_second=2 * _ROWS * _WIDTH * _WIDTH / _product(hosts, device),
    )


def _rate(
    hosts: Hosts, device: torch.device, peers: Sequence[int], latency: float
) -> tuple[float, float] | None:
    """Bytes/s that a rank sends to these peers, and seconds of its core for a byte; None: none."""
    if not peers:
        return None
    seconds, core, size = 0.0, 0.0, 0
    for size in _LARGER:
        seconds, core = _exchange(hosts, device, peers, size)
        if seconds > _LONG:
            break
    # What an idle link lets through at once, and what waking up takes, is no part of its rate
    # As many bytes came as went, and the core had to do with both
    return size / max(seconds - latency, 0.1 * seconds, 1e-9), core / (2 * size)


def _exchange(
    hosts: Hosts, device: torch.device, peers: Sequence[int], size: int
) -> tuple[float, float]:
    """Seconds of an all-to-all, so many bytes of each rank spread over its peers, and of core."""
    send = [0] * hosts.num_ranks
    for peer in peers:
        send[peer] = max(size // len(peers), 1)
    message = torch.zeros(sum(send), dtype=torch.uint8, device=device)
    received = torch.empty_like(message)  # as many come: every rank has as many peers
    exchange = partial(dist.all_to_all_single, received, message, send, send, group=hosts.group)
    return _timed(exchange, hosts.group, device)


def _product(hosts: Hosts, device: torch.device) -> float:
    """Seconds of one product."""
    x = torch.ones(_ROWS, _WIDTH, device=device)
    weight = torch.ones(_WIDTH, _WIDTH, device=device)
    return _timed(lambda: torch.mm(x, weight), hosts.group, device)[0]


def _timed(
    call: Callable[[], object], group: dist.ProcessGroup | None, device: torch.device
) -> tuple[float, float]:
    """Seconds of a call and of the process's cores: the median's, of the slowest rank."""
    call()  # connections and buffers are made on first use
    times = []
    for _ in range(_REPEATS):
        _wait(device)
        # All begin together: waiting for a late rank is no property of the link
        dist.barrier(group=group)
        started, worked = time.perf_counter(), time.process_time()
        call()
        _wait(device)
        times.append((time.perf_counter() - started, time.process_time() - worked))
    slowest = torch.tensor(times, dtype=torch.float64, device=device)
    # Of the slowest rank, and so the same on all: they have to choose alike
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    seconds, core = slowest.median(0).values.tolist()
    return seconds, core


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
