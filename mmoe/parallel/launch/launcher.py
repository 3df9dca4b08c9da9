"""Launcher's variables in the environment (torchrun's); read here alone."""

import os
from pathlib import Path

# What torchrun sets for each process that it starts
_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def has_launched() -> bool:
    """Returns whether a launcher says anything but that this process is alone."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def launched_ranks() -> int:
    """Returns how many processes the launcher says there are (`WORLD_SIZE`); needs no torch group.

    Raises:
        ValueError: That is no number.
    """
    value = os.environ.get("WORLD_SIZE", "1")
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"WORLD_SIZE: expected a number, as torchrun sets it, got {value!r}")
    return int(value)


def launched_rank() -> int:
    """Returns the number of this process among those that the launcher has started."""
    return int(os.environ["RANK"])


def local_rank() -> int:
    """Returns the number of this process among those of its machine (0 without a launcher)."""
    return _number("LOCAL_RANK", 0)


def local_ranks(default: int) -> int:
    """Returns how many processes the launcher has started on this machine."""
    return _number("LOCAL_WORLD_SIZE", default)


def store_address() -> tuple[str, int]:
    """Returns host and port of the store by which the ranks find each other."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def launcher_holds_store() -> bool:
    """Returns whether the launcher holds that store, so that it outlives the ranks."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def is_torchrun() -> bool:
    """Returns whether torchrun has started this process, by itself or not alone."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def restarts_ranks() -> bool:
    """Returns whether the launcher starts ranks again that have failed."""
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def was_restarted() -> bool:
    """Returns whether the launcher has started this process again after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def error_file() -> Path | None:
    """Returns where the launcher looks for why this process failed."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return None if path is None else Path(path)


def check_launcher() -> None:
    """Refuses what a launcher of several ranks leaves out or spells otherwise.

    Raises:
        ValueError: Names the variable.
    """
    for name in _NEEDED:
        value = os.environ.get(name)
        if value is None:
            raise ValueError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {name} is not set; start the ranks "
                "with torchrun, which sets both, or unset WORLD_SIZE to train on one process"
            )
        if name != "MASTER_ADDR" and not value.isdigit():
            raise ValueError(f"{name}: expected a number, as torchrun sets it, got {value!r}")
    if launched_rank() >= launched_ranks():
        raise ValueError(
            f"RANK is {os.environ['RANK']}, but WORLD_SIZE {os.environ['WORLD_SIZE']}: ranks are "
            "counted from 0; start them with torchrun, which sets both"
        )


def rendezvous_failure(why: str) -> str:
    """Returns the error text of a rank that does not find the others."""
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rank, ranks, host, port = (os.environ[name] for name in variables)
    return (
        f"rank {rank} of {ranks}: the ranks cannot meet at {host}:{port} ({why}); start them with "
        "torchrun, with the same --nnodes and --rdzv-endpoint on every machine, and a port that is "
        "free"
    )


def _number(name: str, default: int) -> int:
    """Reads a number that torchrun sets; anything else is refused where the ranks meet."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default
