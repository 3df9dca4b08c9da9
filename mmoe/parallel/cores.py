"""The ranks of a machine keep to cores of their own."""

import os
from collections.abc import Collection
from pathlib import Path

# Set to 0, ranks run wherever the system puts them
SWITCH = "MMOE_BIND_CORES"


def bind_to_own_cores() -> None:
    """Keeps this rank, with all its threads, on its share of the machine's cores.

    Left to the system, a rank that is woken up where another computes shares a core with it until
    the next look at the loads. On two cores, two ranks trained `big` 3 to 5 % faster when bound
    (see benchmarks/README.md). Nothing happens where there are fewer cores than ranks, where the
    launcher has bound its ranks already (`torchrun --numa-binding`, Slurm, `numactl` for each), on
    systems without affinities, or if `MMOE_BIND_CORES=0`.

    Example:
        >>> from mmoe.parallel.cores import bind_to_own_cores
        >>> bind_to_own_cores()  # one process: nothing
    """
    ranks, place = os.environ.get("LOCAL_WORLD_SIZE", ""), os.environ.get("LOCAL_RANK", "")
    if not (ranks.isdigit() and place.isdigit()) or os.environ.get(SWITCH) == "0":
        return
    if int(ranks) < 2 or not hasattr(os, "sched_setaffinity"):
        return
    try:
        cores = os.sched_getaffinity(0)
        if cores != os.sched_getaffinity(os.getppid()):
            return  # bound, each rank by itself
        own = share_of_cores(cores, int(ranks), int(place))
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), own or cores)
    except OSError:
        return  # not allowed here, or a thread has just ended: as the system likes


def share_of_cores(cores: Collection[int], ranks: int, place: int) -> list[int]:
    """The cores of one of `ranks` ranks; none where there are too few.

    Neighbours stay together: threads of one core, cores of one socket.

    Example:
        >>> from mmoe.parallel.cores import share_of_cores
        >>> [len(share_of_cores(range(5), ranks=2, place=place)) for place in (0, 1)]
        [2, 3]
    """
    if len(cores) < ranks:
        return []
    near = sorted(cores, key=_where)
    return near[len(near) * place // ranks : len(near) * (place + 1) // ranks]


def _where(cpu: int) -> tuple[int, int, int]:
    """Socket, core, and number of a thread of the processor."""
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        socket, core = (folder / name for name in ("physical_package_id", "core_id"))
        return int(socket.read_text()), int(core.read_text()), cpu
    except (OSError, ValueError):
        return 0, 0, cpu
