"""`kill -9` of a worker of Ray and of the process that asks, while a folder is scored."""

import os
import random
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen

from benchmarks.faults.commands import start
from benchmarks.faults.scored_kills import (
    TIME_OUT_SECONDS,
    Killed,
    Scoring,
    Watcher,
    contents,
    first_difference,
)
from benchmarks.racing.processes import descendants

_LOOK_SECONDS = 0.005
_WORKER = "ray::PartWorker"  # what Ray has a worker call itself


def kill_ray_scorings(
    scoring: Scoring, folder: Path, count: int, seed: int, say: Callable[[str], None]
) -> list[Killed]:
    """Kills a worker in one half of `count` scorings, the asking process in the other.

    Each at a part drawn at random. Where a worker was killed the scoring itself has to go on; what
    the asking process left is resumed, by Ray or by one process in turns. None where Ray is not
    installed.
    """
    if find_spec("ray") is None:
        say("without ray: no worker of it is killed")
        return []
    draw, killed = random.Random(f"ray {seed}"), []
    for number in range(count):
        out, log = folder / f"ray-{number}", folder / f"ray-{number}.log"
        parts = draw.randint(0, len(scoring.files) * 2 // 3)
        if number % 2 == 0:
            killed.append(_kill_worker(scoring, out, log, parts))
        else:
            killed.append(_kill_driver(scoring, out, log, parts, by_ray=number % 4 == 1))
        end = killed[-1].difference or "same bytes"
        say(f"kill {number + 1}/{count} with {killed[-1].where}: at part {parts}: {end}")
    return killed


def _kill_worker(scoring: Scoring, out: Path, log: Path, parts: int) -> Killed:
    begun = time.perf_counter()
    with Watcher(str(out), scoring.files) as watcher:
        process = _start(scoring, out, log)
        died = False
        while process.poll() is None and not died:
            workers = _workers(process.pid) if _written(out) >= parts else []
            if workers:
                os.kill(workers[0], signal.SIGKILL)
                died = True
            time.sleep(_LOOK_SECONDS)
        code = process.wait(TIME_OUT_SECONDS)
    watcher.look()
    difference = f"ended with {code}: {log}" if code else None
    return _end(scoring, out, "a worker of Ray", begun, watcher, died, difference)


def _kill_driver(scoring: Scoring, out: Path, log: Path, parts: int, *, by_ray: bool) -> Killed:
    begun = time.perf_counter()
    with Watcher(str(out), scoring.files) as watcher:
        process = _start(scoring, out, log)
        while process.poll() is None and not (_written(out) >= parts and _workers(process.pid)):
            time.sleep(_LOOK_SECONDS)
        process.kill()
        process.wait()
        died = process.returncode < 0
        more = ["--resume", *(["--engine", "ray"] if by_ray else [])]
        code = start([*scoring.arguments(out), *more], log).wait(TIME_OUT_SECONDS)
    watcher.look()
    difference = f"--resume ended with {code}: {log}" if code else None
    return _end(scoring, out, "the driver of Ray", begun, watcher, died, difference)


def _end(
    scoring: Scoring,
    out: Path,
    what: str,
    begun: float,
    watcher: Watcher,
    died: bool,
    difference: str | None,
) -> Killed:
    difference = difference or first_difference(scoring.files, contents(out))
    return Killed(what, time.perf_counter() - begun, watcher.wrong, died, difference)


def _start(scoring: Scoring, out: Path, log: Path) -> Popen[bytes]:
    return start([*scoring.arguments(out), "--engine", "ray"], log)


def _written(out: Path) -> int:
    return len(list((out / "_staging").glob("*.parquet")))


def _workers(root: int) -> list[int]:
    """Workers that have begun to score, of the cluster that a process has started."""
    return [p for p, name in descendants(root).items() if name.startswith(f"{_WORKER}.score")]
