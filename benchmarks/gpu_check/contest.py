"""What is timed: calls that compute the same, and how long one takes."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

# How long a call takes: events around a captured graph on a GPU, the host's clock elsewhere. A call
# gets a number and takes its tensors from one of several equal sets, so that on a GPU nothing it
# reads lies in L2 from the call before

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
    """Runs a call over all sets, again and again."""
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


# Calls that compute the same, each with as many sets of tensors as L2 cannot hold


@dataclass(frozen=True)
class Size:
    P: int
    D: int
    H: int
    E: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        kind = {torch.bfloat16: "bf16", torch.float32: "fp32"}[self.dtype]
        return f"{kind} P={self.P} D={self.D} H={self.H} E={self.E}"

    @property
    def flops(self) -> float:
        return 2.0 * self.P * self.D * self.H


@dataclass(frozen=True)
class Contest:
    """Calls that compute the same."""

    name: str  # For the key
    calls: Mapping[str, Call]  # By who; `mmoe` is ours
    sets: int  # Of tensors
    flops: float = 0.0  # That all of them do
    moved: int = 0  # Bytes that all of them have to read and write
    left_out: Mapping[str, str] = field(default_factory=dict)  # Who is not here, and why


@dataclass(frozen=True)
class Layer:
    x_PD: Tensor
    grad_PH: Tensor
    weight_EDH: Tensor
    bias_EH: Tensor
    offsets_E1: Tensor
    bounds: Sequence[int]

    @classmethod
    def draw(cls, size: Size, device: str, seed: int) -> "Layer":
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device).to(size.dtype)

        picks = torch.randint(0, size.E, (size.P,), generator=generator, device=device)
        ends_E = torch.bincount(picks, minlength=size.E).cumsum(0)
        offsets_E1 = torch.cat([ends_E.new_zeros(1), ends_E]).int()
        return cls(
            x_PD=normal(size.P, size.D),
            grad_PH=normal(size.P, size.H),
            weight_EDH=normal(size.E, size.D, size.H) / size.D**0.5,
            bias_EH=normal(size.E, size.H),
            offsets_E1=offsets_E1,
            bounds=offsets_E1.tolist(),
        )

    @property
    def size_in_bytes(self) -> int:
        parts = (self.x_PD, self.grad_PH, self.weight_EDH)
        return sum(part.numel() * part.element_size() for part in parts)


def expert_of_rows(own: Layer) -> Tensor:
    counts_E = own.offsets_E1.diff().long()
    return torch.arange(len(counts_E), device=counts_E.device).repeat_interleave(counts_E)


def layers(size: Size, device: str) -> list[Layer]:
    first = Layer.draw(size, device, 0)
    count = sets_needed(first.size_in_bytes, device)
    return [first, *(Layer.draw(size, device, seed) for seed in range(1, count))]


def sizes(
    dtype: torch.dtype, rows: Sequence[int], widths: Sequence[int], experts: Sequence[int]
) -> Iterator[Size]:
    """All sizes of a grid, D = H."""
    for P, D, E in product(rows, widths, experts):
        yield Size(P, D, D, E, dtype)
