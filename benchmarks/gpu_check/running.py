"""Runs the items of a stage, each in a process and with a clock of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.record import FAILED, LEFT_OUT, MACHINE, NO_TIME, PASSED, ROOT, Record

# How a process says that nothing failed and yet not all was done
EXIT_LEFT_OUT, EXIT_NO_TIME = 77, 75
# Its own clock had time left: it says nothing about the process
CUT = "the stage's clock ended in it"
TAIL = 600  # characters of the last words of a process that failed


@dataclass(frozen=True)
class Item:
    """One process of a stage.

    Attributes:
        key: Of the line that says how it ended.
        command: Arguments of this Python, or a whole command where the first is not `-m`.
        seconds: Its clock.
        needs: Modules without which it is left out.
        environment: Variables set for it.
    """

    key: str
    command: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        """The whole command."""
        before = [sys.executable] if self.command[0].startswith("-") else []
        return [*before, *self.command]


@dataclass(frozen=True)
class Ended:
    """How a process ended: None for the code where its clock ran out."""

    code: int | None
    seconds: float
    words: str


def run_items(
    items: Sequence[Item],
    record: Record,
    log: Path,
    seconds: float,
    workers: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    """Runs what is not done yet until the clock of the stage ends; the record says the rest.

    Args:
        items: In order of value.
        record: Of what is known.
        log: A file that gets all that the processes print.
        seconds: The clock.
        workers: Processes at a time.
        say: Told of each end.
    """
    ends_at, done = time.monotonic() + seconds, record.done()

    def one(item: Item) -> None:
        if item.key not in done:
            _run_item(item, record, log, ends_at - time.monotonic(), say)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, items))


def _run_item(
    item: Item, record: Record, log: Path, left: float, say: Callable[[str], None]
) -> None:
    missing = missing_modules(item.needs)
    if missing:
        record.add(item.key, LEFT_OUT, reason=f"without {', '.join(missing)}")
    elif left < 1:
        record.add(item.key, NO_TIME, reason="the stage's clock ended before it began")
    else:
        # What stands at the start of a line that never came tells of a machine that stopped
        say(f"  {item.key}: at most {min(item.seconds, left):.0f} s")
        ended = run_process(item, log, min(item.seconds, left), record)
        cut = ended.code is None and left < item.seconds
        status, reason = (NO_TIME, CUT) if cut else _judged(ended)
        rest = {"reason": reason} if reason else _result(ended.words)
        record.add(item.key, status, seconds=round(ended.seconds, 2), **rest)
        say(f"  {item.key}: {status} in {ended.seconds:.1f} s{f', {reason}' if reason else ''}")


def run_process(item: Item, log: Path, seconds: float, record: Record) -> Ended:
    """Runs one process, and ends it and all that it started when its time is over."""
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        MACHINE: record.machine,
        **item.environment,
    }
    started = time.monotonic()
    with subprocess.Popen(
        item.argv,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        code: int | None
        try:
            words, _ = process.communicate(timeout=max(seconds, 0.1))
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            words, _ = process.communicate()
            code = None
    with log.open("a", encoding="utf-8") as file:
        file.write(f"== {item.key}\n{words}\n")
    return Ended(code, time.monotonic() - started, words)


def _judged(ended: Ended) -> tuple[str, str]:
    """Status and reason of a process that ended."""
    words = ended.words.strip()
    last = words.splitlines()[-1] if words else "it said nothing"
    if ended.code is None:
        return FAILED, f"its clock of {ended.seconds:.0f} s ended; its last line: {last[-TAIL:]}"
    if ended.code == 0:
        return PASSED, ""
    named = {EXIT_LEFT_OUT: LEFT_OUT, EXIT_NO_TIME: NO_TIME}
    if ended.code in named:
        return named[ended.code], last[-TAIL:]
    return FAILED, f"exit status {ended.code}: {last[-TAIL:]}"


def _result(words: str) -> dict[str, Any]:
    """The JSON that a benchmark prints last, if it does."""
    last = (words.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
    except ValueError:
        return {}
    return {"result": found} if isinstance(found, dict) else {}


def missing_modules(names: Sequence[str]) -> list[str]:
    """Those that a process of this Python could not import; asked of one, as hooks may refuse."""
    return [name for name in names if not _imports(name)]


_ASKED: dict[str, bool] = {}


def _imports(name: str) -> bool:
    if name not in _ASKED:
        call = [sys.executable, "-c", f"import {name}"]
        _ASKED[name] = subprocess.run(call, cwd=ROOT, capture_output=True).returncode == 0
    return _ASKED[name]
