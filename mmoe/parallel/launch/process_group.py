"""The process group of all ranks, and of one process too: training sharded tables needs one."""

import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (
    PrefixStore,  # type: ignore[attr-defined]  # documented, but not in __all__
    Store,  # type: ignore[attr-defined]  # likewise
)

from mmoe.parallel.launch.launcher import check_launcher, launched_ranks, rendezvous_failure

# Seconds that a rank waits for another's part of a collective
COLLECTIVE_SECONDS = 1800
# Seconds in which all ranks have to be there at the start
RENDEZVOUS_SECONDS = 300
# For what takes as long as data or training do; a rank that is gone is noticed all the same
VERY_LONG = timedelta(days=365)
# Store of the rendezvous
_ranks_store: Store | None = None
# How many blocks of `training_group`, in as many threads, share a world of one that was made there
_sharing = 0
_sharing_changes = Lock()


def join_ranks(timeout_seconds: int | None = None, device: torch.device | None = None) -> None:
    """Joins the ranks that torchrun started, if it did; a process on its own stays without a group.

    What reads and scores calls this: on one process it needs no group, and the default one of
    `torch.distributed` is the caller's to make.

    Args:
        timeout_seconds: As for `ensure_process_group`.
        device: Likewise.

    Raises:
        ValueError: Likewise.
    """
    if launched_ranks() > 1 or dist.is_initialized():
        ensure_process_group(timeout_seconds, device)
    elif device is not None and device.type == "cuda":
        torch.cuda.set_device(device)


@contextmanager
def training_group(
    timeout_seconds: int | None = None, device: torch.device | None = None
) -> Iterator[None]:
    """Ensures a process group until the end of the block; ends it if it was made here.

    A world of one that is made here ends here, so that the caller may make a default group
    afterwards. Threads that train at the same time share it, and it ends with the last of them. A
    group that was there stays, and so does that of several ranks.

    Args:
        timeout_seconds: As for `ensure_process_group`.
        device: Likewise.

    Raises:
        ValueError: Likewise.
    """
    global _sharing
    # The group is the process's: threads that train take turns at making and ending it
    with _sharing_changes:
        shares = _sharing > 0 or (launched_ranks() == 1 and not dist.is_initialized())
        ensure_process_group(timeout_seconds, device)
        _sharing += shares
    try:
        yield
    finally:
        with _sharing_changes:
            _sharing -= shares
            if shares and not _sharing and dist.is_initialized():
                dist.destroy_process_group()


def ensure_process_group(
    timeout_seconds: int | None = None, device: torch.device | None = None
) -> None:
    """Joins the ranks that torchrun started, or starts a world of one, if not done.

    A world of one makes one process train by the same code, with the same state names, as many. It
    meets itself in memory (`HashStore`): no port is opened. It is torch's default group, and stays
    (`training_group` ends it); a caller that makes one of its own does so first, and it is used.
    Tensors on the CPU travel by gloo, those on a GPU by NCCL.

    Args:
        timeout_seconds: After which a rank that waits for another gives up; default: what the
            group has, or half an hour.
        device: Of this rank, which becomes the current one of CUDA; default: the CPU.

    Raises:
        ValueError: WORLD_SIZE says that there are several processes, but another variable of the
            launcher is missing or is no number, or the ranks do not find each other; several are to
            use GPUs, and there is no NCCL for it.
    """
    device = device or torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        _join(timedelta(seconds=timeout_seconds or COLLECTIVE_SECONDS))
    elif timeout_seconds is not None:
        _set_patience(timedelta(seconds=timeout_seconds))
    _check_backend(device)


def _join(patience: timedelta) -> None:
    global _ranks_store
    # With NCCL wherever there is a GPU: a run on it may follow one on the CPU
    backend = _backend(cuda=torch.cuda.is_available())
    if launched_ranks() == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in __all__
        hook = sys.excepthook
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=patience)
        sys.excepthook = hook  # torch's writes "[rank0]: " before each line, once more for each fit
        return
    check_launcher()
    end = time.monotonic() + RENDEZVOUS_SECONDS
    try:
        seconds = timedelta(seconds=RENDEZVOUS_SECONDS)
        met = dist.rendezvous("env://", timeout=seconds)  # type: ignore[attr-defined]
        store, rank_, ranks = next(iter(met))
        _ranks_store = store_of_this_start(store, rank_, ranks, max(end - time.monotonic(), 1))
        dist.init_process_group(
            backend, store=_ranks_store, rank=rank_, world_size=ranks, timeout=patience
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(rendezvous_failure(" ".join(str(error).split())[:200])) from error


def rendezvous_store() -> Store:
    """Opens a connection of its own to the store by which the ranks found each other.

    Raises:
        RuntimeError: The store cannot be reached, or there are not several ranks.
    """
    if _ranks_store is None:
        raise RuntimeError("no launcher has started several ranks")
    return _ranks_store.clone()  # pyright: ignore[reportAttributeAccessIssue]  # not in its stubs


def has_joined() -> bool:
    """Returns whether a launcher has started several ranks, and they are all there."""
    return _ranks_store is not None and dist.is_initialized()


def require_group(name: str) -> None:
    """Refuses to go on without a process group; the error begins with a name."""
    if not dist.is_initialized():
        raise ValueError(
            f"{name}: expected a process group; call torch.distributed.init_process_group first"
        )


def rank() -> int:
    """Returns the rank of this process (0 without a process group)."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Returns the number of ranks (1 without a process group)."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _backend(*, cuda: bool) -> str:
    """Returns the backend of both kinds of tensors; the host's numbers and errors keep to gloo."""
    return "cpu:gloo,cuda:nccl" if cuda and dist.is_nccl_available() else "gloo"


def _set_patience(patience: timedelta) -> None:
    """Sets the patience of a group that the command line made before it read the config."""
    if world_size() > 1:
        dist.distributed_c10d._set_pg_timeout(patience)


def patience_of(group: dist.ProcessGroup | None = None) -> timedelta:
    """Returns after which time a rank of a group that waits for another gives up.

    Args:
        group: The ranks; default: all.
    """
    # torch has no public way to ask for it
    of: Any = dist.group.WORLD if group is None else group  # these are not in its stubs
    return of._get_backend(of._device_types[0]).options._timeout


def uses_nccl() -> bool:
    """Returns whether tensors of GPUs travel by NCCL in the process group."""
    return "nccl" in str(dist.get_backend_config())


def _check_backend(device: torch.device) -> None:
    """Several ranks cannot share tensors of GPUs over gloo: it lacks most of what is needed."""
    if device.type == "cuda" and world_size() > 1 and not uses_nccl():
        raise ValueError(
            f"device {device}: this process group has no NCCL ({dist.get_backend_config()}); start "
            "it with ensure_process_group(device=…) on a torch with NCCL, or use device cpu"
        )


# Seconds between two looks of rank 0 at who has come
_LOOK = 0.01


def store_of_this_start(store: Store, rank: int, ranks: int, seconds: float) -> Store:
    """Returns the part of the launcher's store that only the ranks of this start use.

    torchrun keeps one store over all starts of the ranks, and counts the starts on each machine by
    itself (pytorch/pytorch#135712). So a rank may find the address of one that is long dead, and a
    restart counter need not be the same on two machines. Here the ranks of one start agree on a
    name.

    Every other rank leaves a name that nobody had before, and rank 0 answers it with the name of
    the start, until all have come: an answer to a rank of an earlier start is read by nobody.

    Args:
        store: Shared by all ranks, and maybe used by ranks that have ended.
        rank: Of this process.
        ranks: How many there are.
        seconds: After which a rank gives up.

    Raises:
        RuntimeError: Not all ranks came in time.
    """
    if rank:
        name = uuid.uuid4().hex
        store.set(f"mmoe/here/{rank}", name)
        store.wait([f"mmoe/start/{name}"], timedelta(seconds=seconds))
        mine = PrefixStore(store.get(f"mmoe/start/{name}").decode(), store)
        mine.set(f"met/{rank}", "")
        return mine
    start = f"mmoe/{uuid.uuid4().hex}"
    mine = PrefixStore(start, store)
    _answer(store, mine, start, set(range(1, ranks)), time.monotonic() + seconds)
    return mine


def _answer(store: Store, mine: Store, start: str, missing: set[int], end: float) -> None:
    while missing:
        for r in sorted(missing):
            if store.check([f"mmoe/here/{r}"]):
                store.set(f"mmoe/start/{store.get(f'mmoe/here/{r}').decode()}", start)
        missing = {r for r in missing if not mine.check([f"met/{r}"])}
        if missing and time.monotonic() > end:
            raise RuntimeError(f"rank {', '.join(map(str, sorted(missing)))} did not come")
        time.sleep(_LOOK)
