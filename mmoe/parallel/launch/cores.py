"""Binds the ranks of a machine to cores of their own."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from mmoe.parallel.launch.launcher import local_rank, local_ranks
from mmoe.parallel.launch.process_group import has_joined, rank, uses_nccl, world_size
from mmoe.parallel.object_collectives import from_all
from mmoe.process_settings import is_tuned


def bind_to_own_cores(wanted: bool) -> None:
    """Keeps this rank, with all its threads, on its share of the machine's cores.

    Left to the system, a rank that is woken up where another computes shares a core with it until
    the next look at the loads. On two cores, two ranks trained `big` 2 to 6 % faster when bound
    (see benchmarks/README.md). The cores are shared out if all ranks of the machine may use the
    same ones. So nothing happens where ranks are bound already (by this, by `torchrun
    --numa-binding`, Slurm, or `numactl` for each), where there are fewer cores than ranks, on
    systems without affinities, where ranks use GPUs, or if any of the ranks does not want it. Nor
    in a process that is not ours to change (`mmoe.tune_process`). All ranks call it.

    Args:
        wanted: `parallel.bind_cores`.
    """
    if not is_tuned() or not has_joined():
        return
    of_all = from_all(_may_use(wanted and not uses_nccl()))
    place, ranks, cores = local_rank(), local_ranks(0), of_all[rank()]
    first = rank() - place
    # Numbers that no block of neighbours has are another launcher's: nobody is bound
    if ranks < 2 or place >= ranks or not cores or first < 0 or first + ranks > world_size():
        return
    if all(found == cores for found in of_all[first : first + ranks]):
        _bind(share_of_cores(cores, ranks, place))


def share_of_cores(cpus: Collection[int], ranks: int, place: int) -> list[int]:
    """Returns the processors of one of `ranks` ranks; none where there are too few.

    Neighbours stay together: threads of one core, where there are as many cores as ranks, and cores
    of one socket.

    Example:
        >>> share_of_cores([7], ranks=2, place=1)
        []
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        cores.setdefault(_core_of(cpu), []).append(cpu)
    near = [cores[core] for core in sorted(cores)]
    if len(near) < ranks:
        near = [[cpu] for core in near for cpu in core]
    if len(near) < ranks:
        return []
    share = near[len(near) * place // ranks : len(near) * (place + 1) // ranks]
    return [cpu for core in share for cpu in core]


def _may_use(wanted: bool) -> list[int]:
    """The processors that this rank may run on; none: it is not to be bound."""
    if not wanted or not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))


def _bind(cpus: Iterable[int]) -> None:
    cpus = set(cpus)
    threads = Path("/proc/self/task")
    if not cpus or not threads.is_dir():
        return
    # Each by itself: threads that run already do not follow the main one
    for thread in threads.iterdir():
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or we may not
            os.sched_setaffinity(int(thread.name), cpus)


def _core_of(cpu: int) -> tuple[int, int]:
    """Socket and core of a processor; where nothing tells, it is a core of its own."""
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        socket, core = (folder / name for name in ("physical_package_id", "core_id"))
        return int(socket.read_text()), int(core.read_text())
    except (OSError, ValueError):
        return 0, cpu
