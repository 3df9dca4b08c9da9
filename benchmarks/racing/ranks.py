"""Processes: those that do one thing, and ranks of one world, which answer the same commands."""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS, ANSWER_SECONDS = 600.0, 300.0
# The first rank that dies takes the others with it: then all of them can say why
LAST_WORDS_SECONDS = 5.0


@dataclass(frozen=True)
class Seat:
    """Where a rank runs."""

    before: tuple[str, ...] = ()  # What its command begins with, such as `taskset -c 0`
    # Of its environment, beside and instead of the launcher's
    variables: Mapping[str, str] = field(default_factory=dict)


class Ranks:
    """Starts `python -m module argument` once for each rank, as `torchrun` would.

    Each process has its own allocator, threads and caches of compiled products, as it would in real
    life. It answers every command, and its own start, with one line of JSON.
    """

    def __init__(
        self,
        name: str,  # In messages
        module: str,  # What is run
        argument: str,  # Its only argument
        *,
        ranks: int = 1,  # How many; one has no world, and no launcher's variables
        threads: int = 1,
        python: str | None = None,  # The interpreter; None: this one
        seats: Sequence[Seat] | None = None,
    ) -> None:
        self.name = name
        seats = [Seat()] * ranks if seats is None else seats
        port = free_port() if ranks > 1 else 0
        self.logs = [tempfile.TemporaryFile("w+") for _ in range(ranks)]  # noqa: SIM115 - closed with the processes
        self.processes = [
            subprocess.Popen(
                [*seat.before, python or sys.executable, "-m", module, argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**environment(threads), **_launched(rank, ranks, port), **seat.variables},
            )
            for rank, (log, seat) in enumerate(zip(self.logs, seats, strict=True))
        ]

    def wait_until_ready(self, within: float = READY_SECONDS) -> None:
        self._answers(within)

    def __enter__(self) -> "Ranks":
        try:
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        return self.ask_all(do, **values)[0]

    def ask_all(
        self, do: str, *, within: float = ANSWER_SECONDS, **values: Any
    ) -> list[dict[str, Any]]:
        """Sends a command to every rank and waits for all answers."""
        command = json.dumps({"do": do, **values}).encode() + b"\n"
        for rank, process in enumerate(self.processes):
            assert process.stdin is not None
            try:
                process.stdin.write(command)
                process.stdin.flush()
            except BrokenPipeError:
                raise self._died(rank) from None
        return self._answers(within)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process, log in zip(self.processes, self.logs, strict=True):
            process.wait()
            for pipe in (process.stdin, process.stdout, log):
                if pipe is not None:
                    with _ignoring_broken_pipe():
                        pipe.close()

    def _answers(self, seconds: float) -> list[dict[str, Any]]:
        waiting = {p.stdout: rank for rank, p in enumerate(self.processes) if p.stdout is not None}
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + seconds
        while waiting:
            # An answer is one line, and only one is ever under way: nothing is left in a buffer
            left = max(0.0, deadline - time.monotonic())
            ready = select.select(list(waiting), [], [], left)[0]
            if not ready:
                late = sorted(waiting.values())
                raise self._failure(f"did not answer within {seconds:.0f} s", late)
            for stream in ready:
                line = stream.readline()
                rank = waiting.pop(stream)
                if not line:
                    raise self._died(rank)
                answers[rank] = json.loads(line)
        return [answers[rank] for rank in range(len(self.processes))]

    def _died(self, first: int) -> RuntimeError:
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < deadline and any(p.poll() is None for p in self.processes):
            time.sleep(0.1)
        ended = {r for r, process in enumerate(self.processes) if process.poll() is not None}
        return self._failure("has died", sorted({first, *ended}))

    def _failure(self, what: str, ranks: list[int]) -> RuntimeError:
        words = [self._last_words(rank) for rank in ranks]
        if len(self.processes) > 1:
            words = [f"rank {rank}: {said}" for rank, said in zip(ranks, words, strict=True)]
        return RuntimeError(f"{self.name} {what}: {'; '.join(words)}")

    def said(self, rank: int) -> str:
        log = self.logs[rank]
        log.flush()
        log.seek(0)
        return log.read()

    def _last_words(self, rank: int) -> str:
        return (self.said(rank).strip().splitlines()[-1:] or ["it said nothing"])[0]


# Processes that are measured: each does one thing, and its last line is what it found, as JSON

WITHIN_SECONDS = 1200.0


def run_child(
    command: Sequence[str],  # The program and its arguments
    *,
    threads: int,  # Of OpenMP, for a process that does not say so itself
    cwd: Path = ROOT,  # Its folder
    variables: Mapping[str, str] | None = None,  # Of its environment, beside ours
) -> tuple[str, float]:
    """Runs a command to its end; returns what it printed, and its seconds from start to end."""
    started = time.perf_counter()
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**environment(threads), **(variables or {})},
            check=False,
            timeout=WITHIN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{_named(command)} took over {WITHIN_SECONDS:.0f} s") from None
    if finished.returncode:
        words = finished.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise RuntimeError(f"{_named(command)} failed: {words[0]}")
    return finished.stdout, time.perf_counter() - started


def ask_child(command: Sequence[str], **settings: Any) -> dict[str, Any]:
    """The JSON of its last line, and `whole`, its seconds; arguments as of `run_child`."""
    printed, whole = run_child(command, **settings)
    return {**json.loads(printed.strip().splitlines()[-1]), "whole": whole}


def _named(command: Sequence[str]) -> str:
    return " ".join(word if len(word) < 80 else f"{word[:77]}..." for word in command)


def environment(threads: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def with_modules_of(folder: Path) -> dict[str, str]:
    """Variables with which a process, and all that it starts, imports from a folder first."""
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([others] if others else [])])}


def _launched(rank: int, ranks: int, port: int) -> dict[str, str]:
    if ranks == 1:
        return {}
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _ignoring_broken_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        return
