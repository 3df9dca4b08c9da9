"""Runs a command as one of several ranks: one message where it fails, and no endless wait.

And tells a restart of the ranks which run it goes on with.
"""

import io
import json
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from mmoe.errors import RanksDiffer, Rejected, is_time_out
from mmoe.parallel.launch.launcher import (
    error_file,
    launcher_holds_store,
    rendezvous_failure,
    store_address,
    was_restarted,
)
from mmoe.parallel.launch.process_group import RENDEZVOUS_SECONDS, ensure_process_group, rank
from mmoe.parallel.launch.rank_watch import RankWatch
from mmoe.parallel.object_collectives import first_other, from_all, from_first
from mmoe.terminal import readable

# Exit codes: what the user can mend, scores that are rejected, everything else, and Ctrl-C
_MENDABLE, _REJECTED, _FAILED, _INTERRUPTED = 2, 3, 1, 130

# After torch should have given up by itself
_SECONDS_MORE = 15.0


class _Terminated(BaseException):
    """The launcher ends this process: another one has failed."""


def run_as_rank(command: Callable[[], None], asked: Sequence[str]) -> NoReturn:
    """Runs a command on every rank that torchrun started, and ends the process.

    Rank 0 alone prints. The first rank that fails says why, and its number where rank 0 does not
    fail of the same; the others end silently. Where a rank has died without a word (`kill -9`, a
    lost machine), each of the others names it.

    Args:
        command: Raises ValueError or OSError for what the user can mend.
        asked: What this rank was started to do; has to be the same on all of them.

    Raises:
        SystemExit: Always.
    """
    _keep_results_apart()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to lose while they meet
    patience = threading.Timer(RENDEZVOUS_SECONDS + _SECONDS_MORE, _give_up)
    patience.daemon = True
    patience.start()
    try:
        ensure_process_group()
        watch = RankWatch()
    except ValueError as error:
        _say(str(error))
        sys.exit(_MENDABLE)
    patience.cancel()
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _check_same_command(asked)
        _run_quietly(command)
        dist.barrier()  # rank 0 may hold the store
        watch.finish()
    except BaseException as error:
        # Nothing may stop the last words, nor any destructor that waits for another rank
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = _last_words(error, watch)
        sys.stdout.flush()
        sys.stderr.flush()
        watch.finish()
        os._exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. What would follow, the end of threads in C++ that wait for other ranks, has
    # ended a finished process by SIGABRT
    os._exit(0)


def _give_up() -> None:
    """Torch waits on, whatever its time-out, where another program holds the port."""
    _say(rendezvous_failure("no rank answers there"))
    os._exit(_MENDABLE)


def _check_same_command(asked: Sequence[str]) -> None:
    """Ranks that do different things would wait for each other for ever."""
    found = first_other(list(asked))
    if found is not None:
        r, other, first = found
        raise RanksDiffer(
            f"rank {r} was started with another command than rank 0: {shlex.join(other)!r} "
            f"instead of {shlex.join(first)!r}; start all ranks with the same command"
        )


def _keep_results_apart() -> None:
    """Sends what libraries write past Python to standard error, where no result stands.

    Where ranks meet, C++ libraries (gloo, NCCL_DEBUG) say so on standard output, between the lines
    of a result that somebody parses.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    with suppress(OSError):  # it is closed, or no file
        stream.flush()
        if stream.fileno() != 1:
            return
        results = os.dup(1)
        os.dup2(2, 1)
        buffering = 1 if stream.line_buffering else -1
        sys.stdout = os.fdopen(
            results, "w", buffering, encoding=stream.encoding, errors=stream.errors
        )


def _run_quietly(command: Callable[[], None]) -> None:
    if rank() == 0:
        command()
        return
    nowhere = io.StringIO()
    with redirect_stdout(nowhere), redirect_stderr(nowhere):
        command()


class _Words(NamedTuple):
    """Endings of a rank, in words.

    Attributes:
        code: The exit code.
        text: One line; None: only a traceback helps.
        names_rank: Whether the line says itself which rank it is about.
    """

    code: int
    text: str | None = None
    names_rank: bool = False


def _last_words(error: BaseException, watch: RankWatch) -> int:
    """Says what there is to say; returns the exit code."""
    code, text, names_rank = _what_to_say(error, watch.rank)
    lost = watch.lost() if code == _FAILED else None
    if lost is not None:
        _say(f"rank {watch.rank}: {lost}")
    elif watch.failed(text or str(error)):
        # The rank whose error it is, where it is not that of all
        alone = not names_rank and watch.fails_alone(text or str(error))
        whose = f"rank {watch.rank}: " if alone else ""
        if text is not None:
            _say(whose + text)
        else:
            traceback.print_exception(error, file=sys.__stderr__)
            last = "".join(traceback.format_exception_only(error)).strip()
            _tell_torchrun(whose + last)
    return code


def _what_to_say(error: BaseException, rank: int) -> _Words:
    if isinstance(error, Rejected):
        return _Words(_REJECTED, str(error))
    if isinstance(error, ValueError | OSError):
        return _Words(_MENDABLE, str(error), isinstance(error, RanksDiffer))
    if isinstance(error, KeyboardInterrupt):
        advice = f"; {error}" if str(error) else ""
        return _Words(_INTERRUPTED, f"rank {rank} was interrupted{advice}", True)
    if isinstance(error, _Terminated):
        text = f"rank {rank} was told to end (SIGTERM); start the ranks again with --resume"
        return _Words(_FAILED, text, True)
    if is_time_out(error):
        text = (
            f"rank {rank} has waited for another one longer than parallel.timeout_seconds; raise "
            "it where a step takes so long, and start the ranks again with --resume"
        )
        return _Words(_FAILED, text, True)
    return _Words(_FAILED)


def _say(text: str) -> None:
    line = f"mmoe: error: {readable(' '.join(text.split()))}"
    stream = sys.__stderr__ or sys.stderr
    stream.write(f"{line}\n")
    stream.flush()
    _tell_torchrun(line)


def _tell_torchrun(line: str) -> None:
    """Writes the error where torchrun's summary finds it, forty lines below the rank's own."""
    path = error_file()
    if path is None:
        return
    with suppress(OSError), path.open("w") as file:
        # The earliest is the root cause: no rank that ends within this second for lack of this one
        message = {"message": line, "extraInfo": {"timestamp": int(time.time()) - 1}}
        json.dump({"message": message}, file)


def _terminate(*_: object) -> NoReturn:
    raise _Terminated


def begun_before(out: Path) -> bool:
    """Returns whether an earlier start of these ranks, by this torchrun, began `out`.

    A folder that was there before torchrun came is none of theirs. All ranks call it, and all get
    the answer of rank 0.

    Args:
        out: A folder, which holds something from the moment that the work is begun.
    """
    if not launcher_holds_store():  # the store ends with its ranks
        return any(from_all(was_restarted()))
    return from_first(lambda: _begun(out))


def _begun(out: Path) -> bool:
    key = f"mmoe/begun/{out.resolve()}"
    # A client alone: the launcher holds the store, and other ranks need not be there
    store = TCPStore(*store_address(), wait_for_workers=False)
    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if store.check([key]):
        return taken
    # Only of a folder that holds nothing yet: what a later start finds there is then its own
    if not taken:
        store.set(key, "")
    return False
