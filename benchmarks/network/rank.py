"""A rank on a host: `python -m benchmarks.network.rank NOTHING` (see `Ranks`)."""

import os
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.network.hosts import host_bandwidth
from benchmarks.network.layers import count_host_bytes, race_modes, race_placements
from benchmarks.racing.child import answer_commands, private_stdout
from mmoe.parallel import ensure_process_group
from mmoe.parallel.launch.launcher import launched_rank

# Seconds that a rank waits for another; a race of layers takes less
PATIENCE = 240


def main() -> None:
    """Answers commands until there are no more."""
    answers = private_stdout()
    torch.set_num_threads(1)
    keep_to_one_core(launched_rank())
    ensure_process_group(PATIENCE)
    answer_commands(JOBS, answers)


def keep_to_one_core(number: int) -> None:
    """A core for each rank, in turn; ranks of all hosts share those of this machine.

    Before any other thread starts: those that do later keep to it as well.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "bandwidth": host_bandwidth,
    "modes": race_modes,
    "placements": race_placements,
    "host_bytes": count_host_bytes,
}


if __name__ == "__main__":
    main()
