"""Memory that this host has left, for what is about to be loaded."""

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
