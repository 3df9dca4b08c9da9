"""The exchange of a mixture between ranks: NCCL with a GPU each, gloo in a rehearsal.

Starts WORLD processes (see `Ranks`), and sees to it that none outlives its clock: a rank that waits
for one that is gone would wait for ever. Each rank has its rows and its share of the experts. It
computes a step with the others, and alone on the rows of all; then the
messages of that step are sent again, by our wire and by nothing but `all_to_all_single`.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu_check.record import (
    EXIT_LEFT_OUT,
    FAILED,
    MEASURED,
    Record,
    machine_name,
    process_options,
    require_kernels,
)
from benchmarks.racing.child import answer_commands, private_stdout
from benchmarks.racing.ranks import Ranks
from mmoe.mixture import MLPExperts, MultiGateMixture, TopKGate
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, Wire
from mmoe.parallel.launch.launcher import launched_rank, launched_ranks

CPU_RANKS = 2
# Rows of a rank, width, experts' widths, experts, gates, picks
FULL, SMALL = (4_096, 512, (512, 256), 64, 4, 2), (32, 12, (16, 8), 8, 3, 2)
WIRES = {"fp32": None, "bf16": torch.bfloat16}
# Of the largest number: sums in another order, and what a narrow wire rounds
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> None:
    options = process_options("ranks")
    options.add_argument("world", type=int)
    options.add_argument("--seconds", type=float, default=60.0, help="of all ranks")
    settings = options.parse_args(arguments)
    if problem := too_many(settings.world, settings.device):
        print(problem)
        sys.exit(EXIT_LEFT_OUT)
    ends_at = time.monotonic() + settings.seconds
    asked = {name: getattr(settings, name) for name in ("device", "small", "seconds")}
    ranks = Ranks(
        f"{settings.world} ranks",
        "benchmarks.gpu_check.ranks",
        json.dumps(asked),
        ranks=settings.world,
    )
    record, failed = Record(settings.record, machine_name(settings.device)), 0
    try:
        ranks.wait_until_ready(ends_at - time.monotonic())
        for name in WIRES:
            values = ranks.ask_all("measure", within=ends_at - time.monotonic(), wire=name)[0]
            status = MEASURED if values["difference"] <= TOLERANCE[name] else FAILED
            failed += status == FAILED
            if status == FAILED:
                far = f"{values['difference']:.3g} from one process, of the largest number"
                values["reason"] = far
            record.add(f"ranks/{settings.world}/{name}-wire", status, **values)
            print(f"{name}: {status} {values}", flush=True)
    except RuntimeError as error:
        words = (f"-- rank {rank}\n{ranks.said(rank)}" for rank in range(settings.world))
        print("\n".join(words))
        sys.exit(str(error))
    finally:
        ranks.close()
    if failed:
        sys.exit("ranks compute something else than one process")


def too_many(world: int, device: str) -> str:
    here = torch.cuda.device_count() if device == "cuda" else CPU_RANKS
    return "" if world <= here else f"needs {world} GPUs, one for each rank; {here} here"


# One rank


@dataclass(frozen=True)
class Message:
    send: tuple[int, ...]
    receive: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def row_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


class Work:
    """A layer whose experts are spread over the ranks, the whole of it, and everybody's rows."""

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
        return rows[self.rank * self.B : (self.rank + 1) * self.B]

    def step(self) -> list[Tensor]:
        return _step(self.spread, self.mine(self.x_BD), self.mine(self.grad_BGO))

    def wanted(self) -> list[Tensor]:
        out_BGO, grad_BD, *grads = _step(self.alone, self.x_BD, self.grad_BGO)
        return [self.mine(out_BGO), self.mine(grad_BD), *(g[list(self.held)] for g in grads)]


def _step(layer: MultiGateMixture, x_BD: Tensor, grad_BGO: Tensor) -> list[Tensor]:
    x_BD = x_BD.detach().clone().requires_grad_()
    out_BGO = layer(x_BD).out_BGO
    leaves = [x_BD, *layer.experts.parameters()]
    return [out_BGO.detach(), *torch.autograd.grad(out_BGO, leaves, grad_BGO)]


def run_rank(device: str, small: bool, seconds: float) -> None:
    answers = private_stdout()
    here, sizes = _join(device, seconds), SMALL if small else FULL

    def one(wire: str) -> dict[str, Any]:
        return measure(Work(sizes, here, WIRES[wire]), here)

    answer_commands({"measure": one}, answers)
    dist.destroy_process_group()


def _join(device: str, seconds: float) -> torch.device:
    torch.set_num_threads(1)
    nccl, world = device == "cuda", launched_ranks()
    rank = launched_rank() if world > 1 else 0
    here = torch.device("cuda", rank) if nccl else torch.device("cpu")
    if nccl:
        require_kernels()
        torch.cuda.set_device(here)
    dist.init_process_group(
        "nccl" if nccl else "gloo",
        store=dist.HashStore() if world == 1 else None,  # pyright: ignore[reportPrivateImportUsage]
        rank=rank,
        world_size=world,
        # A little less than its own clock: a rank that waits in vain says for what
        timeout=timedelta(seconds=max(5.0, seconds - 10)),
        device_id=here if nccl else None,
    )
    return here


def measure(work: Work, device: torch.device) -> dict[str, Any]:
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
        "difference": difference, "backend": dist.get_backend(), "rows_of_a_rank": work.B,
        "bytes_of_a_step": total, "bytes_to_others": away,
        "milliseconds": {
            "mmoe": _ms(ours), "all_to_all_single": _ms(bare), "whole step": _ms(step),
        },
        "gigabytes_per_second": round(total / ours / 1e9, 3),
        "bare_gigabytes_per_second": round(total / bare / 1e9, 3),
        "times_as_long": {"all_to_all_single": round(bare / ours, 3)},
        "share_of_a_step_on_the_wire": round(bare / step, 4),
    }  # fmt: skip


@contextmanager
def recorded() -> Iterator[list[Message]]:
    found: list[Message] = []
    original = dist.all_to_all_single

    def call(output: Tensor, rows: Tensor, receive: Any, send: Any, **options: Any) -> Any:
        found.append(Message(tuple(send), tuple(receive), tuple(rows.shape[1:]), rows.dtype))
        return original(output, rows, receive, send, **options)

    with mock.patch.object(dist, "all_to_all_single", call):
        yield found


def bare_calls(messages: Sequence[Message], device: torch.device) -> list[Callable[[], object]]:
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
    wire = Wire()
    calls: list[Callable[[], object]] = []
    for message in messages:
        rows = torch.ones(sum(message.send), *message.shape, device=device).to(message.dtype)
        splits = message.send, message.receive
        calls.append(lambda s=rows, n=splits: wire.begin_rows(s, *n).wait())
    return calls


def _seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
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
    if sys.argv[1].startswith("{"):
        run_rank(**json.loads(sys.argv[1]))
    else:
        main()
