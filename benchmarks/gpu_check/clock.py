"""How long a call takes: events around a captured graph on a GPU, the host's clock elsewhere.

A call gets a number and takes its tensors from one of several equal sets, so that on a GPU nothing
it reads lies in L2 from the call before.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[int], object]
ROUNDS = 5
FEWEST_CALLS, MOST_CALLS = 3, 200
ROUND_SECONDS = 0.008


@dataclass(frozen=True)
class Timed:
    """Seconds of one call: the median of rounds, and their range.

    `captured` says whether the calls were one graph: if not, launches may count in.
    """

    seconds: float
    low: float
    high: float
    calls: int
    captured: bool


def sets_needed(set_bytes: int, device: str) -> int:
    """How many sets of so many bytes are more than twice the cache."""
    if device == "cpu":
        return 1
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, min(64, math.ceil(2 * cache / max(set_bytes, 1)) + 1))


def timed(call: Call, device: str, sets: int = 1, rounds: int = ROUNDS) -> Timed:
    """Runs a call over all sets, again and again.

    Args:
        call: Given the number of its set.
        device: cuda or cpu.
        sets: How many there are.
        rounds: Times that are taken.
    """
    call(0)
    once = _once(call, device)
    wanted = max(sets, min(MOST_CALLS, int(ROUND_SECONDS / max(once, 1e-7))))
    calls = max(FEWEST_CALLS, wanted) if device == "cuda" else 1

    def every() -> None:
        for number in range(calls):
            call(number % sets)

    graph = _captured(every) if device == "cuda" else None
    run = every if graph is None else graph.replay
    run()
    clock = _events if device == "cuda" else _host
    seconds = [clock(run) / calls for _ in range(rounds)]
    low, high = min(seconds), max(seconds)
    return Timed(statistics.median(seconds), low, high, calls, graph is not None)


def _once(call: Call, device: str) -> float:
    return _events(lambda: call(0)) if device == "cuda" else _host(lambda: call(0))


def _host(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _events(run: Callable[[], object]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    run()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / 1e3


def _captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """A graph of it; None where it waits for the device or allocates what a graph cannot."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph
