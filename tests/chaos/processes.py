"""`mmoe` as a process and as a call, and cases each in a fork that may die of it."""

import contextlib
import importlib
import io
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

import mmoe.cli
from benchmarks.racing.ranks import ROOT, environment, with_modules_of

Say = Callable[[str], object]
_FORK = multiprocessing.get_context("fork")


class Ended(NamedTuple):
    """How a command ended; the code is −1 where it raised, −2 where it took too long."""

    code: int
    stdout: str
    stderr: str


def one_thread() -> dict[str, str]:
    """An environment for one thread: equal bits are promised for one number of threads.

    What it starts on Ray, in folders of its own, imports from here too.
    """
    return {**environment(1), **with_modules_of(ROOT)}


def start(
    arguments: Sequence[str | Path], log: Path, module: Sequence[str] = ("mmoe",)
) -> subprocess.Popen[bytes]:
    """Starts `python -m mmoe …` on one thread; its standard error goes into the file `log`."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", *module, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            cwd=ROOT,
            env=one_thread(),
        )


def run_command(arguments: Sequence[str | Path], seconds: float) -> Ended:
    command = [sys.executable, "-m", "mmoe", *map(str, arguments)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=one_thread(), timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Ended(-2, "", "")
    return Ended(done.returncode, done.stdout, done.stderr)


class _TookTooLongError(BaseException):
    """No Exception: nothing on the way may take it for an error of the data."""


def run_in_process(arguments: Sequence[str], seconds: float) -> Ended:
    """What `mmoe` does with these arguments, its handling of errors included, as a call."""
    out, err = io.StringIO(), io.StringIO()
    code, before = 0, sys.argv
    sys.argv = ["mmoe", *arguments]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
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
        except BaseException as error:
            code = -2 if isinstance(error, _TookTooLongError) else -1
            traceback.print_exc(file=err)
    sys.argv = before
    if [thread for thread in threading.enumerate() if thread.name == "mmoe-input"]:
        err.write("a thread reads on\n")
    return Ended(code, out.getvalue(), err.getvalue())


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


@dataclass(frozen=True)
class Verdict:
    """What came of a case, and why; what the command said, and whether it was out of time."""

    number: int
    fault: str
    command: str
    verdict: str
    why: str = ""
    said: str = ""
    late: bool = False


RIGHT = ("clear error", "right answer", "harmless", "refused", "rejected")


def judge_in_forks(
    judge: Callable[[int], Verdict],
    numbers: Iterable[int],
    say: Say,
    *,
    again: str,
    jobs: int = 1,
    seconds: float = 240.0,
) -> list[Verdict]:
    """Judges each case in a fork of this process; says what is wrong, and how to see it `again`.

    This process must have no threads. A case that ran out of time is tried once more: the machine
    may have stood still, and hangs come twice.
    """
    left, tried, verdicts = [*numbers], set[int](), list[Verdict]()
    total, running = len(left), dict[Connection, tuple[int, multiprocessing.Process, float]]()
    while left or running:
        while left and len(running) < jobs:
            number, (mine, theirs) = left.pop(0), _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=_answer, args=(judge, number, theirs))
            process.start()
            theirs.close()
            running[mine] = (number, process, time.monotonic() + seconds)
        ready = wait([*running], timeout=1.0)
        late = [pipe for pipe, (_, _, end) in running.items() if time.monotonic() > end]
        for pipe in {*ready, *late}:
            number, process, _ = running.pop(pipe)
            verdict = _verdict(pipe, number, process, late=pipe not in ready)
            if verdict.late and number not in tried:
                tried.add(number)
                left.append(number)
                continue
            verdicts.append(verdict)
            if verdict.verdict not in RIGHT:
                say(
                    f"input {number}: {verdict.verdict.upper()}: {verdict.command}, "
                    f"{verdict.fault}: {verdict.why}\n  {verdict.said}\n  again: "
                    f"python -m tests.chaos {again} --only-input {number}"
                )
            if len(verdicts) % 100 == 0 or len(verdicts) == total:
                say(f"input {len(verdicts)}/{total}")
    return sorted(verdicts, key=lambda verdict: verdict.number)


def prepare(make: Callable[[], object]) -> None:
    """Makes in a fork what cases share; then imports all that it took, which every case would."""

    def made(number: int) -> Verdict:
        make()
        return Verdict(number, "clean", "", "right answer", said=" ".join(sys.modules))

    [made_one] = judge_in_forks(made, [-1], lambda _: None, again="", seconds=900.0)
    if made_one.verdict != "right answer":
        raise RuntimeError(f"what all cases share could not be made: {made_one.why}")
    for name in made_one.said.split():
        if name.partition(".")[0] in ("mmoe", "pyarrow", "tensorboard", "torch", "torchrec"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _verdict(pipe: Connection, number: int, process, *, late: bool) -> Verdict:
    if late:
        process.kill()
    try:
        return pipe.recv()
    except (EOFError, OSError):
        process.join()
        why = "the process hangs" if late else f"the process ended with {process.exitcode}"
        return Verdict(number, "?", "?", "traceback", why, late=late)
    finally:
        pipe.close()
        process.join()


def _answer(judge: Callable[[int], Verdict], number: int, pipe: Connection) -> None:
    os.dup2(2, 1)  # whatever a library prints is no answer
    torch.set_num_threads(1)  # others judge beside it
    limit_memory(4 << 30)  # a damaged size must not take the machine's memory
    try:
        pipe.send(judge(number))
    except BaseException:
        why = traceback.format_exc()[-900:]
        pipe.send(Verdict(number, "the harness", "?", "traceback", why))
    os._exit(0)  # a thread that hangs holds nobody up


def limit_memory(more: int) -> None:
    """So many bytes of address space beyond what this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
