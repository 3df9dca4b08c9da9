"""A whole training step of what `benchmarks.train` calls `big`, beside the same in plain torch.

python -m benchmarks.gpu_check.train STEP --record FILE [--device cuda|cpu] [--small]

Mixture, towers, loss, gradients and Adam in bf16 under autocast; the rows are given, without the
tables of embeddings, which the line says. `STEP` is dense-8192, top2-65536 and the like.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_check.clock import timed
from benchmarks.gpu_check.extension import require_kernels
from benchmarks.gpu_check.plain_layers import DenseGroupedLayer, DenseLayer, GroupedLayer
from benchmarks.gpu_check.product_contests import product_rate
from benchmarks.gpu_check.record import FAILED, LEFT_OUT, MEASURED, Record, machine_name
from benchmarks.train.workloads import EXPERTS, HIDDEN, LEARNING_RATE, TOWER, WORKLOADS
from mmoe.mixture import MultiGateMixture, SoftmaxGate, TopKGate, mlp_experts

BATCHES = (8_192, 65_536)
# Gates, and picks of each: as `big` has it, and what sparse gates would be
GATES = {"dense": (2, None), "top2": (4, 2)}
STEPS = tuple(f"{kind}-{batch}" for batch in BATCHES for kind in GATES)
WIDTH = WORKLOADS["big"].input_dim
SETS, ROUNDS = 3, 20
TABLES = "none"  # rows are given; `whole.py` has them
# Of the fastest of plain torch, by gates
HOPED_FOR = {"dense": 1.2, "top2": 2.0}
PROFILED = 3  # steps


class Ranker(nn.Module):
    """A mixture and a tower for each task."""

    def __init__(self, mixture: nn.Module, tasks: int) -> None:
        super().__init__()
        self.mixture = mixture
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN[-1], TOWER), nn.ReLU(), nn.Linear(TOWER, 1))
            for _ in range(tasks)
        )

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `logits_BT`."""
        mixed = self.mixture(x_BD)
        mixed_BGO = mixed if isinstance(mixed, Tensor) else mixed.out_BGO
        towers = enumerate(self.towers)
        return torch.cat([tower(mixed_BGO[:, task]) for task, tower in towers], dim=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """A line for ours and one for each rival."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.train")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="64 rows, nothing compiled")
    settings = parser.parse_args(arguments)
    if settings.device == "cuda":
        require_kernels()
    record = Record(settings.record, machine_name(settings.device))
    if not run(settings.step, settings.device, settings.small, record):
        sys.exit("a step failed; the record says which")


def run(step: str, device: str, small: bool, record: Record) -> bool:
    """Measures what is not yet; whether all went well."""
    kind, batch = step.split("-")
    rows, done, well = 64 if small else int(batch), record.done(), True
    rate = measured_rate(device, small)
    for who, make in _contestants(kind, small).items():
        key = f"train/{step}/{who}"
        if key in done:
            continue
        try:
            graphed = who.endswith("graphed")
            values = measure(make, kind, rows, device, rate, graphed=graphed)
        # A compiler throws what it likes, and one rival must not cost the others
        except Exception as error:
            status = FAILED if who == "mmoe" else LEFT_OUT
            record.add(key, status, reason=f"{type(error).__name__}: {str(error)[:300]}")
            well = well and status != FAILED
            continue
        record.add(key, MEASURED, rows=rows, tables=TABLES, **values)
        print(f"{key}: {values}", flush=True)
    _compare(step, kind, record)
    return well


def _compare(step: str, kind: str, record: Record) -> None:
    """A line that says how many times as fast as each rival the faster of ours is."""
    start, lines = f"train/{step}/", record.lines()
    rates = {
        key.removeprefix(start): line["rows_per_second"]
        for key, line in lines.items()
        if key.startswith(start) and "rows_per_second" in line
    }
    ours = max((rate for who, rate in rates.items() if who.startswith("mmoe")), default=0)
    others = {who: rate for who, rate in rates.items() if not who.startswith("mmoe")}
    if ours and others:
        times = {who: round(ours / rate, 3) for who, rate in others.items()}
        key = f"train/{step} against plain torch"
        record.add(key, MEASURED, times_as_fast=times, hoped_for=HOPED_FOR[kind])


def _contestants(kind: str, small: bool) -> dict[str, Callable[[], Ranker]]:
    gates, k = GATES[kind]

    def ours() -> Ranker:
        experts = mlp_experts(EXPERTS, WIDTH, list(HIDDEN))
        gate = (
            SoftmaxGate(WIDTH, gates, EXPERTS)
            if k is None
            else TopKGate(WIDTH, gates, EXPERTS, k=k)
        )
        return Ranker(MultiGateMixture(WIDTH, gates, experts, gate=gate), gates)

    sizes = WIDTH, HIDDEN, EXPERTS, gates

    def batched() -> Ranker:
        return Ranker(DenseLayer(*sizes), gates)

    def grouped() -> Ranker:
        layer = DenseGroupedLayer(*sizes) if k is None else GroupedLayer(*sizes, k)
        return Ranker(layer, gates)

    def compiled(make: Callable[[], Ranker]) -> Callable[[], Ranker]:
        # What it returns has the methods of what it was given
        return lambda: cast(Ranker, torch.compile(make()))

    plain = {"F.grouped_mm": grouped, **({"baddbmm": batched} if k is None else {})}
    found = {"mmoe": ours, **plain}
    if not small:
        found |= {f"{who} graphed": make for who, make in [*found.items()]}
        found |= {f"{who} compiled": compiled(make) for who, make in [*plain.items()]}
        found["mmoe compiled"] = compiled(ours)
    return found


def measure(
    make: Callable[[], Ranker], kind: str, rows: int, device: str, rate: float, *, graphed: bool
) -> dict[str, Any]:
    """Rows/s, the share of the product rate, and the share that waits for the host.

    Graphed, the model's forward and backward passes are a captured graph each; loss and Adam are
    launched as always.
    """
    gates = GATES[kind][0]
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=LEARNING_RATE, fused=True, capturable=device == "cuda"
    )
    x = [torch.randn(rows, WIDTH, device=device).requires_grad_() for _ in range(SETS)]
    labels = [(torch.rand(rows, gates, device=device) < 0.3).float() for _ in range(SETS)]
    # A graph keeps addresses, and what autocast caches is gone after a step
    autocast = partial(torch.autocast, device, torch.bfloat16, cache_enabled=not graphed)
    if graphed:
        with autocast():
            sample = (torch.zeros_like(x[0]).requires_grad_(),)
            model = cast(Ranker, torch.cuda.make_graphed_callables(model, sample))

    def step(n: int) -> None:
        with autocast():
            logits_BT = model(x[n])
        loss = F.binary_cross_entropy_with_logits(logits_BT.float(), labels[n])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        x[n].grad = None

    seconds = _wall(step, device)
    # A graph that launches the model's graphs is no way to tell their time
    on_device = None if graphed else timed(step, device, SETS, rounds=3)
    captured = on_device is not None and on_device.captured
    share = flops(kind) * rows / seconds / rate
    busy = on_device.seconds if on_device and captured else _kernels(step, device)
    return {
        "rows_per_second": round(rows / seconds),
        "milliseconds": round(seconds * 1e3, 4),
        "milliseconds_of_the_device": None if busy is None else round(busy * 1e3, 4),
        "share_of_product_rate": round(share, 4),
        # What the same work costs less as one graph, which no host has to launch; where none can
        # be made, what a profiler sees of kernels
        "share_waiting_for_host": None if busy is None else round(max(0.0, 1 - busy / seconds), 4),
        "captured": captured,
    }


def _kernels(step: Callable[[int], None], device: str) -> float | None:
    """Seconds in which the kernels of a step run; None where nothing tells."""
    if device != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for number in range(PROFILED):
            step(number % SETS)
        _wait(device)
    total = sum(event.self_device_time_total for event in profile.key_averages())
    return total / 1e6 / PROFILED or None


def flops(kind: str) -> float:
    """Of a row, forward and backward: experts, gates, towers; of sparse gates the picked alone."""
    gates, k = GATES[kind]
    # Distinct experts of a row on average, where gates pick independently
    experts = EXPERTS if k is None else EXPERTS * (1 - (1 - k / EXPERTS) ** gates)
    expert = WIDTH * HIDDEN[0] + HIDDEN[0] * HIDDEN[1]
    return 6.0 * (experts * expert + gates * (WIDTH * EXPERTS + HIDDEN[1] * TOWER + TOWER))


def _wall(step: Callable[[int], None], device: str) -> float:
    """Seconds of a step among many, launched one after another as training does."""
    rounds = ROUNDS if device == "cuda" else 2
    for number in range(3 if device == "cuda" else 1):
        step(number % SETS)
    found = []
    for _ in range(3):
        _wait(device)
        started = time.perf_counter()
        for number in range(rounds):
            step(number % SETS)
        _wait(device)
        found.append((time.perf_counter() - started) / rounds)
    return statistics.median(found)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measured_rate(device: str, small: bool) -> float:
    """FLOP/s of one large product in bf16."""
    contest = product_rate(torch.bfloat16, 64 if small else 8192, device)
    return contest.flops / timed(contest.calls["mm"], device).low


if __name__ == "__main__":
    main()
