"""Memory: what this host has left, and whether the allocator keeps what is freed."""

import ctypes
import os
from pathlib import Path

from mmoe.terminal import byte_size

_CGROUPS = Path("/sys/fs/cgroup")


def check_fits(needed: int, what: str) -> None:
    """Refuses what does not fit, before it is loaded.

    Args:
        needed: Bytes.
        what: That takes them; starts the message.

    Raises:
        ValueError: The host, or what this process may have of it, has fewer.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"{what}: takes {needed:,} bytes ({byte_size(needed)}), but this host has "
            f'{available:,} available ({byte_size(available)}); say table_precision="int8", let '
            "fewer processes share the host, or take one with more memory"
        )


def available_bytes() -> int | None:
    """Returns what the host, and the control groups of this process, have left; None: unknown.

    Pages of files count as available: they go when memory is asked for.
    """
    found = [_of_host(), *map(_of_group, _groups())]
    known = [count for count in found if count is not None]
    return min(known) if known else None


def _of_host() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None


def _groups() -> list[Path]:
    """Folders of this process's control groups that may limit memory, of both versions."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds and "memory" not in kinds.split(","):
            continue
        root = _CGROUPS / "memory" if kinds else _CGROUPS
        own = root / path.lstrip("/")
        # A container sees its own group as the root, whatever the path says
        found += [own, *(above for above in own.parents if above.is_relative_to(root))]
    return list(dict.fromkeys(found))


def _of_group(group: Path) -> int | None:
    for limit, usage, files, shared in (
        ("memory.max", "memory.current", "file", "shmem"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
    ):
        try:
            most = int((group / limit).read_text(encoding="ascii"))  # `max`: none
            used = int((group / usage).read_text(encoding="ascii"))
            lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
            counts = {name: int(count) for name, count in map(str.split, lines)}
            return most - max(used - counts.get(files, 0) + counts.get(shared, 0), 0)
        except (OSError, ValueError):
            continue
    return None


# glibc's names for what mallopt sets (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_MOST_KEPT = 2**31 - 1  # bytes; mallopt takes an int
_MAPPED = 2**20  # bytes; from there on a piece is the system's own


def keep_freed_memory() -> None:
    """Asks glibc to keep what a step frees for the next one, instead of giving it back.

    Left alone it returns tens of megabytes to the system after every step, which then hands them
    out again page by page and filled with zeros. A step of 4,096 rows with 8 experts 256-128 and
    39.5M embedding parameters took 83 to 87 ms with this and 109 to 110 without in bf16, 146 to
    149 and 161 to 172 in fp32 (two threads of an AMD EPYC, two runs each, taken in turn). Nothing
    is mapped outside the heap either, since the embeddings of a wide log exceed the 32 MiB that
    glibc would keep: with 200 features a step took 494 ms instead of 517 and 536. At most 2 GiB at
    the end of the heap stay with the process. Where the user set glibc's own variables, or another
    allocator or system runs, nothing happens.

    Example:
        >>> from mmoe.run.memory import keep_freed_memory
        >>> keep_freed_memory()

    Source: mallopt(3).
    """
    _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _MOST_KEPT})


def return_freed_memory() -> None:
    """Asks glibc to give large pieces back as soon as they are freed, for many processes of a host.

    Left alone it raises what it calls large up to 32 MiB, and a heap between whose pieces nothing
    fits grows: a worker of Spark that scores took up to 260 MiB of its own, and 130 MiB with this,
    in the same time. Where the user set glibc's own variables, or another allocator or system runs,
    nothing happens.

    Example:
        >>> from mmoe.run.memory import return_freed_memory
        >>> return_freed_memory()  # doctest: +SKIP

    Source: mallopt(3).
    """
    _set({_M_MMAP_THRESHOLD: _MAPPED})


def _set(values: dict[int, int]) -> None:
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for parameter, value in values.items():
            mallopt(parameter, value)
