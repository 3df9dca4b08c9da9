"""Where commands write: a path of this machine, or an address, to which it is sent."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mmoe.command_output import reporter
from mmoe.resuming import restarts_ranks


@dataclass(frozen=True)
class Place:
    """Where a command writes.

    Attributes:
        path: On this machine; None: it chooses itself.
        address: What the user calls it; None: by its path.
    """

    path: Path | None
    address: str | None = None

    def shown(self, path: str | Path) -> str:
        """Returns what the user calls a path in it."""
        if self.address is None or self.path is None:
            return str(path)
        below = Path(path).relative_to(self.path).as_posix()
        return self.address if below == "." else f"{self.address}/{below}"


@contextmanager
def folder_of(out: str | None, *, resume: bool = False) -> Generator[Place]:
    """Gives the folder of an `--out`; see `mmoe.run.mirror` for what is at an address."""
    local = _local(out)
    if out is None or local is not None:
        yield Place(local)
        return
    from mmoe.run.mirror import mirrored

    with mirrored(out, resume=resume or restarts_ranks(), say=reporter(quiet=False).say) as path:
        yield Place(path, out.rstrip("/"))


@contextmanager
def file_of(output: str, option: str, *, overwrite: bool) -> Generator[Place]:
    """Gives the place of a file that a command writes."""
    local = _local(output)
    if local is not None:
        yield Place(local)
        return
    from mmoe.run.store import sent_file

    with sent_file(output, option, overwrite=overwrite) as path:
        yield Place(path, output)


def _local(out: str | None) -> Path | None:
    """The path, if it is one; None of an address."""
    from mmoe.datasets.files.data_file import is_address, without_protocol

    path = None if out is None else without_protocol(out)
    return None if path is None or is_address(str(path)) else Path(path)
