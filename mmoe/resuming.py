"""How a command goes on: with what is in its folder, and what Ctrl-C says of it."""

import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from mmoe.errors import Interrupted
from mmoe.parallel.launch.launcher import has_launched, restarts_ranks


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
    from mmoe.parallel.launch.restarts import begun_before

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
    """With --resume, as it has to be written."""
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
