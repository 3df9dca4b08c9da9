"""The exchange of a mixture between ranks: NCCL with a GPU each, gloo in a rehearsal.

python -m benchmarks.gpu_check.ranks WORLD --record FILE [--seconds S] [--device cuda|cpu] [--small]

Starts WORLD processes, which get `--rank` and `--store` as well, and sees to it that none outlives
its clock: a rank that waits for one that is gone would wait for ever. Each rank has its rows and
its share of the experts. It computes a step with the others, and alone on the rows of all; then the
messages of that step are sent again, by our wire and by nothing but `all_to_all_single`.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu_check.record import (
    EXIT_LEFT_OUT,
    FAILED,
    MEASURED,
    ROOT,
    Record,
    machine_name,
    process_options,
    require_kernels,
)
from mmoe.mixture import MLPExperts, MultiGateMixture, TopKGate
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, Wire

MODULE = "benchmarks.gpu_check.ranks"
# Once a rank has failed, the others get so many seconds to say why they did
LAST_WORDS = 5.0
CPU_RANKS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status 0 only where every rank ended well."""
    options = process_options("ranks")
    options.add_argument("world", type=int)
    options.add_argument("--seconds", type=float, default=60.0, help="of all ranks")
    options.add_argument("--rank", type=int, help="this process is one of them")
    options.add_argument("--store", type=Path, help="where ranks meet")
    settings = options.parse_args(arguments)
    if settings.rank is not None:
        run_rank(settings)
        return
    if problem := too_many(settings.world, settings.device):
        print(problem)
        sys.exit(EXIT_LEFT_OUT)
    with tempfile.TemporaryDirectory(prefix="gpu-check-ranks-") as folder:
        failed = run(settings, Path(folder))
    if failed:
        sys.exit(failed)


def too_many(world: int, device: str) -> str:
    """Why there are not so many ranks here; nothing where there may be."""
    here = torch.cuda.device_count() if device == "cuda" else CPU_RANKS
    return "" if world <= here else f"needs {world} GPUs, one for each rank; {here} here"


def run(settings: argparse.Namespace, folder: Path) -> str:
    """What went wrong, in one line; nothing where all went well."""
    ends_at = time.monotonic() + settings.seconds
    ranks = [_start(rank, settings, folder) for rank in range(settings.world)]
    try:
        _wait(ranks, ends_at)
    finally:
        hung = [rank for rank, process in enumerate(ranks) if process.poll() is None]
        for process in ranks:
            process.kill()
            process.wait()
    words = [_said(folder, rank) for rank in range(settings.world)]
    print("\n".join(f"-- rank {rank}\n{said}" for rank, said in enumerate(words)))
    failed = [rank for rank, process in enumerate(ranks) if process.returncode]
    if not failed:
        return ""
    first = next((rank for rank in failed if rank not in hung), failed[0])
    why = f"its clock of {settings.seconds:.0f} s ended" if first in hung else "it failed"
    last = (words[first].strip().splitlines() or ["it said nothing"])[-1]
    return f"rank {first} of {settings.world}: {why}: {last}"


def _start(rank: int, settings: argparse.Namespace, folder: Path) -> subprocess.Popen:
    """One rank; what it prints goes to a file, so that no full pipe holds it up."""
    command = [sys.executable, "-m", MODULE, str(settings.world), "--rank", str(rank)]
    command += ["--store", str(folder / "store"), "--record", str(settings.record)]
    command += ["--device", settings.device, "--seconds", str(settings.seconds)]
    command += ["--small"] if settings.small else []
    with _output(folder, rank).open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _wait(ranks: Sequence[subprocess.Popen], ends_at: float) -> None:
    """Until all have ended, or the clock has, which a failure sets to a few seconds from then."""
    failed = False
    while time.monotonic() < ends_at:
        codes = [rank.poll() for rank in ranks]
        if None not in codes:
            return
        if not failed and any(codes):
            failed, ends_at = True, min(ends_at, time.monotonic() + LAST_WORDS)
        time.sleep(0.05)


def _output(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.txt"


def _said(folder: Path, rank: int) -> str:
    return _output(folder, rank).read_text(encoding="utf-8", errors="replace")


# One rank

# Rows of a rank, width, experts' widths, experts, gates, picks
FULL, SMALL = (4_096, 512, (512, 256), 64, 4, 2), (32, 12, (16, 8), 8, 3, 2)
WIRES = {"fp32": None, "bf16": torch.bfloat16}
# Of the largest number: sums in another order, and what a narrow wire rounds
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
ROUNDS = 5


@dataclass(frozen=True)
class Message:
    """What one all-to-all of a step sent and received, in rows of a type."""

    send: tuple[int, ...]
    receive: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def row_bytes(self) -> int:
        """Of one of them."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


class Work:
    """A layer whose experts are spread over the ranks, the whole of it, and everybody's rows.

    Args:
        sizes: As `FULL`.
        device: This rank's.
        wire_dtype: Rows travel in it.
    """

    def __init__(
        self, sizes: tuple[Any, ...], device: torch.device, wire_dtype: torch.dtype | None
    ) -> None:
        self.B, D, hidden, E, G, k = sizes
        self.rank, ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        # Smooth: where a narrow wire rounds, no gradient changes by all of it
        pool = MLPExperts(E, D, hidden, activation="silu")
        gate = TopKGate(D, G, E, k=k)
        placement = ExpertPlacement.even(E, ranks)
        self.held = placement.on(self.rank)
        part = pool.part(self.held)
        assert isinstance(part, MLPExperts), "there are at least as many experts as ranks"
        dispatcher = AllToAllDispatcher(placement, wire_dtype=wire_dtype)
        self.alone = MultiGateMixture(D, G, pool, gate=gate, execution="grouped").to(device)
        self.spread = MultiGateMixture(D, G, part, gate=gate, dispatcher=dispatcher).to(device)
        generator = torch.Generator().manual_seed(1)
        rows, grads = (self.B * ranks, D), (self.B * ranks, G, hidden[-1])
        self.x_BD = torch.randn(rows, generator=generator).to(device)
        self.grad_BGO = torch.randn(grads, generator=generator).to(device)

    def mine(self, rows: Tensor) -> Tensor:
        """This rank's rows of those of all."""
        return rows[self.rank * self.B : (self.rank + 1) * self.B]

    def step(self) -> list[Tensor]:
        """With the others: output, gradients of rows, and of the experts that are held here."""
        return _step(self.spread, self.mine(self.x_BD), self.mine(self.grad_BGO))

    def wanted(self) -> list[Tensor]:
        """The same as one process has it."""
        out_BGO, grad_BD, *grads = _step(self.alone, self.x_BD, self.grad_BGO)
        return [self.mine(out_BGO), self.mine(grad_BD), *(g[list(self.held)] for g in grads)]


def _step(layer: MultiGateMixture, x_BD: Tensor, grad_BGO: Tensor) -> list[Tensor]:
    x_BD = x_BD.detach().clone().requires_grad_()
    out_BGO = layer(x_BD).out_BGO
    leaves = [x_BD, *layer.experts.parameters()]
    return [out_BGO.detach(), *torch.autograd.grad(out_BGO, leaves, grad_BGO)]


def run_rank(settings: argparse.Namespace) -> None:
    """The first rank writes a line for each wire; every rank ends with 1 where any is wrong."""
    device = _join(settings)
    record = Record(settings.record, machine_name(settings.device))
    sizes = SMALL if settings.small else FULL
    failed = 0
    for name, wire_dtype in WIRES.items():
        values = measure(Work(sizes, device, wire_dtype), device)
        status = MEASURED if values["difference"] <= TOLERANCE[name] else FAILED
        failed += status == FAILED
        if status == FAILED:
            values["reason"] = f"{values['difference']:.3g} from one process, of the largest number"
        if settings.rank == 0:
            record.add(f"ranks/{settings.world}/{name}-wire", status, **values)
        print(f"{name}: {status} {values}", flush=True)
    dist.destroy_process_group()
    if failed:
        sys.exit("ranks compute something else than one process")


def _join(settings: argparse.Namespace) -> torch.device:
    """This rank's device, once all have met."""
    torch.set_num_threads(1)
    nccl = settings.device == "cuda"
    device = torch.device("cuda", settings.rank) if nccl else torch.device("cpu")
    if nccl:
        require_kernels()
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if nccl else "gloo",
        init_method=f"file://{settings.store.resolve()}",
        rank=settings.rank,
        world_size=settings.world,
        # A little less than its own clock: a rank that waits in vain says for what
        timeout=timedelta(seconds=max(5.0, settings.seconds - 10)),
        device_id=device if nccl else None,
    )
    return device


def measure(work: Work, device: torch.device) -> dict[str, Any]:
    """How far the ranks are from one process, and how fast their messages travel."""
    with recorded() as messages:
        found = work.step()
    pairs = zip(found, work.wanted(), strict=True)
    difference = _largest(max(_difference(a, b) for a, b in pairs), device)
    total = sum(sum(m.send) * m.row_bytes() for m in messages)
    away = sum((sum(m.send) - m.send[work.rank]) * m.row_bytes() for m in messages)
    bare = _seconds(bare_calls(messages, device), device)
    ours = _seconds(wire_calls(messages, device), device)
    step = _seconds([work.step], device)
    return {
        "difference": difference,
        "backend": dist.get_backend(),
        "rows_of_a_rank": work.B,
        "bytes_of_a_step": total,
        "bytes_to_others": away,
        "milliseconds": {
            "mmoe": _ms(ours),
            "all_to_all_single": _ms(bare),
            "whole step": _ms(step),
        },
        "gigabytes_per_second": round(total / ours / 1e9, 3),
        "bare_gigabytes_per_second": round(total / bare / 1e9, 3),
        "times_as_long": {"all_to_all_single": round(bare / ours, 3)},
        "share_of_a_step_on_the_wire": round(bare / step, 4),
    }


@contextmanager
def recorded() -> Iterator[list[Message]]:
    """Every all-to-all inside, as it is sent."""
    found: list[Message] = []
    original = dist.all_to_all_single

    def call(output: Tensor, rows: Tensor, receive: Any, send: Any, **options: Any) -> Any:
        found.append(Message(tuple(send), tuple(receive), tuple(rows.shape[1:]), rows.dtype))
        return original(output, rows, receive, send, **options)

    with mock.patch.object(dist, "all_to_all_single", call):
        yield found


def bare_calls(messages: Sequence[Message], device: torch.device) -> list[Callable[[], object]]:
    """The messages once more, into memory that is there, by torch alone."""
    calls: list[Callable[[], object]] = []
    for message in messages:
        rows, received = (
            torch.ones(sum(count), *message.shape, device=device).to(message.dtype)
            for count in (message.send, message.receive)
        )
        splits = list(message.receive), list(message.send)
        calls.append(lambda r=received, s=rows, n=splits: dist.all_to_all_single(r, s, *n))
    return calls


def wire_calls(messages: Sequence[Message], device: torch.device) -> list[Callable[[], object]]:
    """The messages once more, as our dispatcher sends them."""
    wire = Wire()
    calls: list[Callable[[], object]] = []
    for message in messages:
        rows = torch.ones(sum(message.send), *message.shape, device=device).to(message.dtype)
        splits = message.send, message.receive
        calls.append(lambda s=rows, n=splits: wire.begin_rows(s, *n).wait())
    return calls


def _seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Of all calls, one after another, until the last rank is done: the median of rounds."""
    repeats = 10 if device.type == "cuda" else 2
    found = []
    for _ in range(ROUNDS + 1):
        _largest(0.0, device)  # all begin together
        started = time.perf_counter()
        for _ in range(repeats):
            for call in calls:
                call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(_largest((time.perf_counter() - started) / repeats, device))
    return statistics.median(found[1:])  # the first one sets connections up


def _largest(value: float, device: torch.device) -> float:
    """Of all ranks; waits for them."""
    number = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(number, dist.ReduceOp.MAX)
    return float(number)


def _difference(found: Tensor, wanted: Tensor) -> float:
    """Of the largest number; endless where either has none."""
    gap = float((found.double() - wanted.double()).abs().max())
    return gap / max(1e-3, float(wanted.abs().max())) if gap == gap else float("inf")


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


if __name__ == "__main__":
    main()
