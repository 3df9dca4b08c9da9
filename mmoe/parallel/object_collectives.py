"""Collectives of Python objects: rank 0's results for all, or a value of each rank."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch.distributed as dist

from mmoe.parallel.launch.process_group import VERY_LONG, rank, world_size

T = TypeVar("T")


def from_first(make: Callable[[], T], *, takes_long: bool = False) -> T:
    """Returns on every rank what `make` returns on rank 0; no other rank calls it.

    Args:
        make: Returns something that can be pickled. If it raises, rank 0 ends, and the other ranks
            with it (see `RankWatch`).
        takes_long: The others wait as long as it takes, not `parallel.timeout_seconds`.

    Example:
        >>> from_first(lambda: 3)
        3
    """
    if world_size() == 1:
        return make()
    group = None
    if takes_long:
        # Of its own: a group has one time-out for all that is waited for in it
        group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=VERY_LONG))
    value = [make() if rank() == 0 else None]  # into which other ranks get it
    dist.broadcast_object_list(value, src=0, group=group)
    if group is not None:
        dist.destroy_process_group(group)
    return value[0]  # type: ignore[return-value]  # rank 0's


def to_first(value: T) -> Sequence[T]:
    """Gathers every rank's value on rank 0, in order of ranks; other ranks get their own.

    Example:
        >>> to_first(3)
        [3]
    """
    if world_size() == 1:
        return [value]
    values: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, values)
    return [value] if values is None else values


def from_all(value: T, group: dist.ProcessGroup | None = None) -> Sequence[T]:
    """Gathers every rank's value on every rank, in order of ranks.

    Args:
        value: Of this rank.
        group: The ranks; default: all.

    Example:
        >>> from_all(3)
        [3]
    """
    ranks = world_size() if group is None else dist.get_world_size(group)
    if ranks == 1:
        return [value]
    values: list[Any] = [None] * ranks
    dist.all_gather_object(values, value, group=group)
    return values


def first_other(value: T) -> tuple[int, T, T] | None:
    """Finds the first rank whose value differs: rank, its value, rank 0's; None: all agree.

    Every rank gets the same answer, so that all raise the same error.

    Example:
        >>> print(first_other(3))
        None
    """
    first, *others = from_all(value)
    differ = ((r, other, first) for r, other in enumerate(others, start=1) if other != first)
    return next(differ, None)
