"""The process group of all ranks, and of one process too: sharded embeddings need one."""

import os
from datetime import timedelta

import torch.distributed as dist

# What torchrun sets for each process that it starts
_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Seconds that a rank waits for another's part of a collective
PATIENCE = 1800
# Seconds in which all ranks have to be there at the start
_MEETING = 300


def launched_ranks() -> int:
    """How many processes the launcher says there are (`WORLD_SIZE`); needs no torch group."""
    value = os.environ.get("WORLD_SIZE", "1")
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"WORLD_SIZE: expected a number, as torchrun sets it, got {value!r}")
    return int(value)


def ensure_process_group(timeout_seconds: int = PATIENCE) -> None:
    """Joins the ranks that torchrun started, or starts a gloo world of one; once.

    A world of one makes one process run the same code, with the same state names, as many. It
    meets itself in memory (`HashStore`): no port is opened.

    Args:
        timeout_seconds: After which a rank that waits for another gives up.

    Raises:
        ValueError: WORLD_SIZE says that there are several processes, but another variable of the
            launcher is missing or is no number, or the ranks do not find each other.
    """
    if dist.is_initialized():
        return
    patience = timedelta(seconds=timeout_seconds)
    if launched_ranks() == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in __all__
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=patience)
        return
    _check_launcher()
    try:
        seconds = timedelta(seconds=_MEETING)
        meeting = dist.rendezvous("env://", timeout=seconds)  # type: ignore[attr-defined]
        store, rank_, ranks = next(iter(meeting))
        dist.init_process_group("gloo", store=store, rank=rank_, world_size=ranks, timeout=patience)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ValueError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: the ranks cannot meet at "
            f"{address} ({' '.join(str(error).split())[:200]}); start them with torchrun, with the "
            "same --nnodes and --rdzv-endpoint on every machine, and a port that is free"
        ) from error


def rank() -> int:
    """Of this process; 0 where there is no process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many ranks there are; 1 where there is no process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _check_launcher() -> None:
    for name in _LAUNCHER:
        value = os.environ.get(name)
        if value is None:
            raise ValueError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {name} is not set; start the ranks "
                "with torchrun, which sets both, or unset WORLD_SIZE to train on one process"
            )
        if name != "MASTER_ADDR" and not value.isdigit():
            raise ValueError(f"{name}: expected a number, as torchrun sets it, got {value!r}")
