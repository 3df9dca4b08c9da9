"""Output of commands: what they print, where they write, how they resume."""

import json
import shlex
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mmoe.errors import Interrupted
from mmoe.parallel.launch.launcher import has_launched, restarts_ranks
from mmoe.terminal import readable


def reporter(quiet: bool) -> Any:
    """Returns what is told of progress."""
    from mmoe.run import ConsoleReporter, SilentReporter

    return SilentReporter() if quiet else ConsoleReporter()


def print_table(table: Any) -> None:
    """Prints a table on standard output."""
    from mmoe.run.console import Terminal

    Terminal(width=200, highlight=False).print(table)


def print_grids(grids: Iterable[Any]) -> None:
    """Prints tables of a page (`mmoe.report.tables.Grid`), an empty line behind each."""
    from mmoe.run.console import plain_table

    for grid in grids:
        print_table(plain_table(grid.headings, grid.rows, grid.title))
        print()


def print_json(result: Any) -> None:
    """Prints JSON on standard output, as the files of a run have it."""
    print(json.dumps(result, indent=2, allow_nan=False))


def say(line: object) -> None:
    """Prints a line on standard output, whatever names from data are in it."""
    print(readable(str(line)))


@dataclass(frozen=True)
class Place:
    """Place that a command writes to.

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
    from mmoe.run.mirror import sent_file

    with sent_file(output, option, overwrite=overwrite) as path:
        yield Place(path, output)


def _local(out: str | None) -> Path | None:
    """The path, if it is one; None of an address."""
    from mmoe.datasets.files.data_file import is_address, without_protocol

    path = None if out is None else without_protocol(out)
    return None if path is None or is_address(str(path)) else Path(path)


def resumes(out: Path | None, resume: bool, what: str, *, changed_data: bool = False) -> bool:
    """Returns whether to go on with what is in `out`: asked for, or begun before a restart.

    Raises:
        ValueError: There is no `out` to go on in, or `changed_data` is said of a new beginning.
    """
    if changed_data and not resume:
        raise ValueError("--changed-data needs --resume: what begins takes the data as it is")
    if resume and out is None:
        raise ValueError(f"--resume needs --out: the {what} to continue")
    if not restarts_ranks():
        return resume
    if out is None:
        raise ValueError(f"torchrun --max-restarts needs --out: the {what} that restarts continue")
    from mmoe.parallel.launch.run_as_rank import begun_before

    # Ranks that torchrun starts again go on where the last checkpoint is
    return begun_before(out) or resume


class Stopped(Exception):
    """Ctrl-C, where the same command can go on; says how."""


@contextmanager
def advising_resume(output: Path | None = None) -> Generator[None]:
    """Says after Ctrl-C how to go on: with the folder that was written into, or with `output`.

    Raises:
        Stopped: There is something to go on with.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        known = isinstance(stop, Interrupted)
        folder, saved = (stop.folder, stop.saved) if known else (output, True)
        if folder is None or not folder.is_dir():
            raise
        goes_on = "goes on from what was saved" if saved else "begins again"
        raise Stopped(f"{_same_command(folder)} {goes_on}") from None


def _same_command(folder: Path) -> str:
    """Returns the same command with --resume."""
    given = sys.argv[1:]
    more = [] if "--resume" in given else ["--resume"]
    if not any(word.partition("=")[0] in ("--out", "--output") for word in given):
        more = ["--out", str(folder), *more]
    if has_launched():  # the launcher is part of it
        return f"the same command with {shlex.join(more) or '--resume'}"
    return f"`{shlex.join(['mmoe', *given, *more])}`"


def by_time(name: str) -> Path:
    """Returns the default --out; two of one second are told apart by numbers (`numbered`)."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
