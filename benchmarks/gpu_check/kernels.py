"""Times one group of operators beside its alternatives: the most telling sizes first.

python -m benchmarks.gpu_check.kernels GROUP --record FILE [--seconds S] [--device cuda|cpu]
                                             [--small]
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.clock import Timed, timed
from benchmarks.gpu_check.contest import Contest, Size, sizes
from benchmarks.gpu_check.dense_contests import dense_ways
from benchmarks.gpu_check.extension import require_kernels
from benchmarks.gpu_check.product_contests import dense, gate, grouped, product_rate
from benchmarks.gpu_check.record import FAILED, MEASURED, Record, machine_name
from benchmarks.gpu_check.routing_contests import routing
from benchmarks.gpu_check.running import EXIT_NO_TIME

# Seconds of each group; what a stopped one has measured is kept, and the next run goes on from it
GROUPS = {"grouped-bf16": 62, "grouped-fp32": 34, "routing": 28, "dense": 22}
BF16, FP32 = torch.bfloat16, torch.float32
# Of the norm: roundings of bf16, sums in another order
TOLERANCE = {BF16: 2e-2, FP32: 1e-4}
LIMITS = ("copy", "bmm, even rows", "bf16 mm", "torch.topk", "mm")  # compute something else
RATE_SIZE = {"cuda": 8192, "cpu": 64}


def main(arguments: Sequence[str] | None = None) -> None:
    """A line for each contest; exit status 75 where the clock ended first."""
    settings = _arguments(arguments)
    if settings.device == "cuda":
        require_kernels()
    record = Record(settings.record, machine_name(settings.device))
    ends_at, done, failed, waiting = time.monotonic() + settings.seconds, record.done(), 0, 0
    rates = _rates(record, settings)
    for name, make in plan(settings.group, settings.device, settings.small):
        if name in done:
            continue
        if time.monotonic() > ends_at:
            waiting += 1
            continue
        lost = sum(not _measure(contest, record, settings, rates) for contest in make())
        failed += lost
        if not lost:
            record.add(name, MEASURED, marks="all contests of a size")
    _finish(failed, waiting)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.kernels")
    parser.add_argument("group", choices=tuple(GROUPS))
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a rehearsal's sizes")
    return parser.parse_args(arguments)


def _finish(failed: int, waiting: int) -> None:
    if failed:
        sys.exit(f"{failed} contests failed; the record says which")
    if waiting:
        print(f"the clock ended with {waiting} sizes to go: run it again")
        sys.exit(EXIT_NO_TIME)


def plan(group: str, device: str, small: bool) -> Iterator[tuple[str, Any]]:
    """Names of what is measured together, and what makes its contests."""
    if group == "routing":
        for B, E, width, dtype in _routing_sizes(small):
            kind = "bf16" if dtype == BF16 else "fp32"
            make = partial(routing, B, E, width, dtype, device)
            yield f"kernels/size/routing {kind} B={B} E={E} O={width}", make
        return
    builders = {"dense": (dense, gate, dense_ways)}.get(group, (grouped,))
    for size in _product_sizes(group, small):
        for builder in builders:
            name = f"kernels/size/{builder.__name__} {size.name}"
            yield name, partial(builder, size, device)


def _product_sizes(group: str, small: bool) -> Iterator[Size]:
    """Each size once; what targets speak of comes first."""
    if small:
        yield from sizes(FP32 if group == "grouped-fp32" else BF16, [64], [16], [4])
        return
    if group == "dense":
        yield from sizes(BF16, [16_384, 4_096, 65_536], [256, 512], [8, 32])
        yield from sizes(FP32, [4_096], [256], [8])
        return
    dtype = FP32 if group == "grouped-fp32" else BF16
    first = list(sizes(dtype, [16_384], [512], [8, 64]))
    every = sizes(dtype, [16_384, 4_096, 65_536], [512, 256, 1_024, 128], [8, 64, 256])
    yield from dict.fromkeys([*first, *every])


def _routing_sizes(small: bool) -> list[tuple[int, int, int, torch.dtype]]:
    if small:
        return [(32, 8, 16, FP32), (32, 8, 16, BF16)]
    rows, experts = (16_384, 4_096, 65_536), (64, 8, 256)
    return [(B, E, 256, BF16) for B in rows for E in experts] + [(16_384, 64, 256, FP32)]


def _rates(record: Record, settings: argparse.Namespace) -> dict[str, float]:
    """FLOP/s of one large product, by type: measured now, as clocks and temperatures change."""
    found = {}
    for name, dtype in (("bf16", BF16), ("fp32", FP32)):
        side = RATE_SIZE[settings.device] // (1 if dtype == BF16 else 2)
        contest = product_rate(dtype, side, settings.device)
        took = timed(contest.calls["mm"], settings.device)
        found[name] = contest.flops / took.low
        key = f"kernels/rate/{settings.group}/{name}"
        record.add(key, MEASURED, flops_per_second=found[name], side=side)
    return found


def _measure(
    contest: Contest, record: Record, settings: argparse.Namespace, rates: dict[str, float]
) -> bool:
    """Writes the line of one contest; whether all went well."""
    key, device = f"kernels/{contest.name}", settings.device
    took: dict[str, Timed] = {}
    errors: dict[str, str] = {}
    for who, call in contest.calls.items():
        try:
            took[who] = timed(call, device, contest.sets)
        # A compiler throws what it likes, and one rival must not cost the others
        except Exception as error:
            errors[who] = (str(error).splitlines() or [type(error).__name__])[0]
    values = _values(contest, took, rates)
    problem = errors.get("mmoe") or _differs(contest, took)
    left_out = {**contest.left_out, **errors}
    status = FAILED if problem else MEASURED
    record.add(key, status, **values, left_out=left_out, **({"reason": problem} if problem else {}))
    print(f"{key}: {problem or values['milliseconds']}", flush=True)
    return not problem


def _values(contest: Contest, took: dict[str, Timed], rates: dict[str, float]) -> dict[str, Any]:
    """What is known of a contest."""
    values: dict[str, Any] = {
        "milliseconds": {who: round(t.seconds * 1e3, 5) for who, t in took.items()},
        "range": {who: [round(t.low * 1e3, 5), round(t.high * 1e3, 5)] for who, t in took.items()},
        "not_captured": [who for who, t in took.items() if not t.captured],
        "sets": contest.sets,
    }
    if "mmoe" not in took:
        return values
    ours = took["mmoe"].seconds
    values["times_as_long"] = {
        who: round(t.seconds / ours, 3) for who, t in took.items() if who != "mmoe"
    }
    if contest.flops:
        kind = "fp32" if " fp32 " in contest.name or contest.name.startswith("gate_mm") else "bf16"
        values["share_of_product_rate"] = round(contest.flops / ours / rates[kind], 4)
    if contest.moved:
        values["gigabytes_per_second"] = round(contest.moved / ours / 1e9, 2)
    return values


def _differs(contest: Contest, took: dict[str, Timed]) -> str:
    """Who computes something else than ours, if anybody."""
    if "mmoe" not in took:
        return ""
    ours = _tensors(contest.calls["mmoe"](0))
    for who in took:
        if who == "mmoe" or who in LIMITS:
            continue
        for mine, other in zip(ours, _tensors(contest.calls[who](0)), strict=False):
            error = float((mine.double() - other.double()).norm() / other.double().norm())
            if not error <= TOLERANCE.get(mine.dtype, 0.0):
                return f"{who} gives other numbers: a relative error of {error:.3g}"
    return ""


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.numel() else []
    return [tensor for part in value for tensor in _tensors(part)]


if __name__ == "__main__":
    main()
