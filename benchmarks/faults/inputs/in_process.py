"""The command line in this process: as quick as a call, judged as a process."""

import contextlib
import io
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import mmoe.cli


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: The exit code; −1 where it raised, −2 where it took too long.
        stdout: What it printed.
        stderr: What it said; the traceback, where it raised.
    """

    code: int
    stdout: str
    stderr: str


class _TookTooLongError(BaseException):
    """No Exception: nothing on the way may take it for an error of the data."""


def run_in_process(arguments: Sequence[str], seconds: float) -> Ended:
    """What `mmoe` does with these arguments, its handling of errors included."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _arguments(arguments),
        warnings.catch_warnings(),
        _time_limit(seconds),
    ):
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning, module="torchrec")
        try:
            mmoe.cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except _TookTooLongError:
            code = -2
            traceback.print_exc(file=err)
        except BaseException:
            code = -1
            traceback.print_exc(file=err)
    if [thread for thread in threading.enumerate() if thread.name == "mmoe-input"]:
        err.write("a thread reads on\n")
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _arguments(arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["mmoe", *arguments]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise _TookTooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
