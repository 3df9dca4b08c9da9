"""The real command line, as a process."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.inputs.in_process import Ended
from benchmarks.racing.ranks import ROOT, environment, with_modules_of


def one_thread() -> dict[str, str]:
    """An environment for one thread: equal bits are promised for one number of threads.

    What it starts on Ray, in folders of its own, imports from here too.
    """
    return {**environment(1), **with_modules_of(ROOT)}


def start(
    arguments: Sequence[str | Path],
    log: Path,
    module: Sequence[str] = ("mmoe",),
) -> subprocess.Popen[bytes]:
    """`python -m mmoe …` on one thread; its standard error goes into the file `log`."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", *module, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            cwd=ROOT,
            env=one_thread(),
        )


def run_command(arguments: Sequence[str | Path], seconds: float) -> Ended:
    """Runs it to its end, or until the time is up."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mmoe", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=one_thread(),
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Ended(-2, "", "")
    return Ended(done.returncode, done.stdout, done.stderr)
