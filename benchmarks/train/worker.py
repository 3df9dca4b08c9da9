"""A contestant's process: `python -m benchmarks.train.worker SPEC` (started by `Contestant`).

It trains a window when told to, and waits between windows.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import cycle
from types import SimpleNamespace
from typing import Any, Protocol, TextIO

import torch

from benchmarks.racing.child import onednn_products, private_stdout
from benchmarks.train.workloads import Spec, read_batches

EPOCH = "epoch"  # how the library's progress begins while it trains


class Job(Protocol):
    def add(self, rows: int, seconds: float) -> dict[str, Any] | None: ...


class Window:
    """Times steps, after rows that let caches warm up again and use up what was read ahead."""

    def __init__(self, rows: int, settle: int) -> None:
        self.rows, self.settle = rows, settle
        self.done, self.seconds, self.faults = 0, 0.0, minor_faults()

    def add(self, rows: int, seconds: float) -> dict[str, Any] | None:
        if self.settle > 0:
            self.settle -= rows
            self.faults = minor_faults()
            return None
        self.done += rows
        self.seconds += seconds
        if self.done < self.rows:
            return None
        faults = minor_faults() - self.faults
        return {"rows": self.done, "seconds": self.seconds, "minor_faults": faults}


class Pacer:
    """Is told of every step, and does not come back from there until the next one is wanted.

    So the steps between two commands run without interruption, in the contestant's own loop and
    thread, and nothing of it runs while another contestant does.
    """

    def __init__(self, jobs: Mapping[str, Callable[..., Job]], answers: TextIO) -> None:
        self.jobs = {"run": Window, **jobs}
        self.answers = answers
        self.job: Job = _Ready()
        self.last = time.perf_counter()

    def started(self) -> None:
        self.last = time.perf_counter()

    def stepped(self, rows: int) -> None:
        answer = self.job.add(rows, time.perf_counter() - self.last)
        if answer is not None:
            self.answers.write(json.dumps(answer) + "\n")
            self.answers.flush()
            self.job = self._next()
        self.last = time.perf_counter()

    def _next(self) -> Job:
        line = sys.stdin.readline()
        command = json.loads(line) if line.strip() else {"do": "stop"}
        name = command.pop("do")
        if name == "stop":
            os._exit(0)  # in the middle of an epoch that nobody will finish
        return self.jobs[name](**command)


class _Ready:
    def add(self, rows: int, seconds: float) -> dict[str, Any] | None:
        return {"ready": True}


class PacedReporter:
    """Hands on when an epoch begins, and every finished step, which the library reports."""

    def __init__(
        self, stepped: Callable[[int], None], started: Callable[[], None] = lambda: None
    ) -> None:
        self.stepped, self.started = stepped, started

    def say(self, text: str) -> None:
        """Nothing."""

    @contextmanager
    def track(
        self, what: str, total: int | None, unit: str, *, done: int = 0
    ) -> Iterator[SimpleNamespace]:
        """Validation and checkpoints lie between two epochs and are not counted."""
        training = what.startswith(EPOCH)
        if training:
            self.started()

        def advance(amount: int, note: str = "") -> None:
            if training:
                self.stepped(amount)

        yield SimpleNamespace(advance=advance)


def minor_faults() -> int:
    """Pages that the process touched for the first time since the system gave them."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


# The process


def main() -> None:
    answers = private_stdout()
    spec = Spec.from_json(sys.argv[1])
    torch.set_num_threads(spec.threads)
    if spec.kind == "mmoe":
        from benchmarks.train.ours import JOBS, run_ours

        run_ours(spec, Pacer(JOBS, answers))
    elif spec.kind == "plain":
        _run_plain(spec, Pacer({}, answers))
    else:
        from benchmarks.train.peers import PEERS

        PEERS[spec.kind](spec, Pacer({}, answers))


def _run_plain(spec: Spec, pacer: Pacer) -> None:
    """Batches are tensors before the first step, and the same ones come round in every epoch."""
    from benchmarks.train.plain_torch import Lookups, PlainTorch

    rival = PlainTorch(spec.sizes, bf16=spec.precision == "bf16")
    batches = [Lookups(batch) for batch in read_batches(spec.sizes, spec.log.train, seed=0)]
    with onednn_products() if spec.onednn else nullcontext():
        pacer.started()
        for batch in cycle(batches):
            rival.step(batch)
            pacer.stepped(len(batch))


if __name__ == "__main__":
    main()
