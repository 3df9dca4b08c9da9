"""Starts `python -m mmoe …` as several ranks, the way torchrun does, without its agent."""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.forked import Forked


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(arguments: Sequence[str | Path], rank: int, ranks: int, port: int) -> Forked:
    return start_program(["-m", "mmoe", *map(str, arguments)], rank, ranks, port)


def start_program(program: Sequence[str], rank: int, ranks: int, port: int) -> Forked:
    return Forked(program, environment=environment(rank, ranks, port), number=rank)


def launch(
    arguments: Sequence[str | Path],
    ranks: int,
    *,
    only: Mapping[int, Sequence[str]] = {},
    seconds: float = 120.0,
) -> list[Ended]:
    """Runs all ranks to their end; `only` adds arguments for some of them."""
    port = free_port()
    processes = [start([*arguments, *only.get(r, ())], r, ranks, port) for r in range(ranks)]
    try:
        texts = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(p.returncode, *text) for p, text in zip(processes, texts, strict=True)]


def kill_at_first_checkpoint(config: Path, out: Path, ranks: int, *more: str) -> None:
    """Begins a run, whose ranks are killed when its first checkpoint is there."""
    port = free_port()
    arguments = ["train", config, "--out", out, *more]
    started = [start(arguments, rank, ranks, port) for rank in range(ranks)]
    end = time.monotonic() + 60
    while not (out / "checkpoint" / "index.json").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    for process in started:
        process.kill()
        process.wait()
