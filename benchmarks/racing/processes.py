"""Processes of this machine, as Linux tells of them."""

from pathlib import Path


def descendants(root: int) -> dict[int, str]:
    """Those that a process has started, and they in turn: number → command line."""
    found, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        process = int(folder.name)
        found[process] = command.decode(errors="replace")
        # "pid (name) state ppid …", and a name may hold spaces and brackets
        parents[process] = int(stat.rpartition(")")[2].split()[1])

    def descends(process: int) -> bool:
        while process in parents and process != root:
            process = parents[process]
        return process == root

    return {p: command for p, command in found.items() if p != root and descends(p)}
