"""A command as one of several ranks: one message where it fails, and no endless wait."""

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import NoReturn

import torch.distributed as dist

from mmoe.parallel.process_group import ensure_process_group, rank
from mmoe.parallel.rank_watch import RankWatch

# Exit codes: what the user can mend, and everything else
_MENDABLE, _FAILED = 2, 1
# What a rank says of others that are gone
_GONE = "gone: "


class _Terminated(BaseException):
    """The launcher ends this process: another one has failed."""


def run_as_rank(command: Callable[[], None]) -> NoReturn:
    """Runs a command on every rank that torchrun started, and ends the process.

    Rank 0 alone prints. The first rank that fails says why; the others end silently. Where a rank
    has died without a word (`kill -9`, a lost machine), each of the others names it.

    Args:
        command: Raises ValueError or OSError for what the user can mend.

    Raises:
        SystemExit: Always.
    """
    try:
        ensure_process_group()
        watch = RankWatch()
    except ValueError as error:
        _say(str(error))
        sys.exit(_MENDABLE)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _run_quietly(command)
        dist.barrier()  # rank 0 may hold the store
        watch.finish()
    except BaseException as error:
        # Nothing may stop the last words, nor any destructor that waits for another rank
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = _last_words(error, watch)
        sys.stdout.flush()
        sys.stderr.flush()
        watch.finish()
        os._exit(code)
    dist.destroy_process_group()
    sys.exit(code)


def _run_quietly(command: Callable[[], None]) -> int:
    """The exit code; a usage error is one on every rank."""
    try:
        if rank() == 0:
            command()
        else:
            nowhere = io.StringIO()
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                command()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else _FAILED
    return 0


def _last_words(error: BaseException, watch: RankWatch) -> int:
    """Says what there is to say; returns the exit code."""
    mendable = isinstance(error, ValueError | OSError)
    if not mendable and watch.failure() is None:
        gone = watch.gone()
        if gone:
            watch.failed(f"{_GONE}{', '.join(map(str, gone))}")
    said = watch.failure()
    if said is not None and said.startswith(_GONE):
        _say(
            f"rank {watch.rank}: rank {said.removeprefix(_GONE)} has ended without a word (killed, "
            "or its machine is gone); start the ranks again with --resume"
        )
        return _FAILED
    if said is None and watch.failed(str(error)):
        if mendable:
            _say(str(error))
        else:
            traceback.print_exception(error, file=sys.__stderr__)
    return _MENDABLE if mendable else _FAILED


def _say(text: str) -> None:
    stream = sys.__stderr__ or sys.stderr
    stream.write(f"mmoe: error: {' '.join(text.split())}\n")
    stream.flush()


def _terminate(*_: object) -> NoReturn:
    raise _Terminated
