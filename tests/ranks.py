"""Ranks for tests: `run_ranks` calls a function on each rank of a world, `launch` runs a command.

    python tests/ranks.py RANK WORLD_SIZE FOLDER MODULE ARGUMENTS...

A module that ranks import has `main(rank, ranks, folder, *arguments)`, which they call when they
have met; `folder` is the world's own, and what `main` returns is this rank's report.
"""

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.forked import Forked, start_servers

# Seconds after which a rank that waits for another gives up, and a world is ended
PATIENCE, LONGEST = 60, 280


def run_ranks(folder: Path, module: str, ranks: int, *arguments: object) -> list:
    """What each rank reports; the fixture of this name gives the folder."""
    start_servers()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    given = [str(ranks), str(folder), f"tests.{module}", *map(str, arguments)]
    began = [
        Forked([__file__, str(rank), *given], environment=environment, number=rank,
               errors_of=["mmoe"])
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        errors = [rank.communicate(timeout=LONGEST)[1] for rank in began]
    finally:
        for rank in began:
            rank.kill()
    assert [rank.returncode for rank in began] == [0] * ranks, "\n".join(errors)
    assert not any("WARNING:" in error for error in errors), errors[0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def join_world(rank: int, ranks: int, store: str | Path) -> None:
    """Meets the others at the file `store`; each rank computes on one thread."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE),
    )


def shared_out(
    cases: Mapping[str, Any], alone: Callable[[Any], Any], of_one: Callable[[Any], Hashable] = id
) -> dict[str, Any]:
    """What one process computes of each case: every rank does its share, and gets them all.

    Args:
        of_one: What of a case one process can tell; cases that are alike in it are computed once.
    """
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    same = {name: of_one(case) for name, case in cases.items()}
    first = {key: name for name, key in reversed(same.items())}
    mine = {name: alone(cases[name]) for name in list(first.values())[rank::ranks]}
    parts: list[dict[str, Any]] = [{}] * ranks
    dist.all_gather_object(parts, mine)
    found = {name: of_case for part in parts for name, of_case in part.items()}
    return {name: found[first[key]] for name, key in same.items()}


@contextmanager
def one_group() -> Iterator[None]:
    """Lets all groups of all ranks be one: to make one takes longer than to train a case."""
    import torch.distributed as dist

    new_group, group = dist.new_group, dist.new_group(timeout=timedelta(seconds=PATIENCE))

    def make(ranks=None, **_):
        return group if ranks is None else new_group(ranks)

    with patch.object(dist, "new_group", make):
        yield


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
    """What torchrun tells a rank."""
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


@contextmanager
def started(program: Sequence[str | Path], ranks: int) -> Iterator[list[Forked]]:
    """Ranks of `mmoe …`, or of `-c CODE` or a file; whoever is left is killed."""
    is_program = str(program[0]) == "-c" or str(program[0]).endswith(".py")
    begin, port = (start_program if is_program else start), free_port()
    processes = [begin([*map(str, program)], rank, ranks, port) for rank in range(ranks)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def launch(
    arguments: Sequence[str | Path],
    ranks: int,
    *,
    only: Mapping[int, Sequence[str]] = {},
    seconds: float = 120.0,
) -> list[Ended]:
    """Runs `mmoe` as ranks to their end, as torchrun does; `only` adds arguments for some."""
    if ranks > 1:
        start_servers()
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
    with started(["train", config, "--out", out, *more], ranks):
        wait_for(out / "checkpoint" / "index.json")


def wait_for(path: Path, seconds: float = 120.0) -> None:
    """Until a file is there."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)


def main(rank: int, ranks: int, folder: Path, module: str, *arguments: str) -> None:
    """One rank of a world."""
    import torch.distributed as dist

    join_world(rank, ranks, folder / "store")
    found = importlib.import_module(module).main(rank, ranks, folder, *arguments)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
