"""Each case in a process of its own, forked from one that has imported all there is to import."""

import json
import os
import resource
import select
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.faults.score_inputs.case import Scored
from benchmarks.faults.score_inputs.judged import SECONDS, ScoreVerdict, draw_case, judge

# A damaged size must not take the machine's memory
_MORE_BYTES = 4 << 30


def judge_scorings(
    folder: Path, numbers: Iterable[int], seed: int, say: Callable[[str], None], jobs: int = 2
) -> list[ScoreVerdict]:
    """Judges the cases; what is wrong is said at once, with how to see it again.

    Args:
        folder: For the cases' files.
        numbers: Which ones.
        seed: Of all.
        say: Told what is wrong.
        jobs: Cases at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = _Child(-1, lambda: _make(folder / "space"), 900.0).verdict()
    if made.verdict != "harmless":
        raise RuntimeError(f"the clean scoring failed: {made.why} {made.said}")
    left, running = [*numbers], list[_Child]()
    verdicts: list[ScoreVerdict] = []
    total, again = len(left), set[int]()
    while left or running:
        while left and len(running) < jobs:
            running.append(_case(folder, seed, left.pop(0)))
        select.select([child.pipe for child in running], [], [], 1.0)
        for child in [child for child in running if child.has_ended()]:
            running.remove(child)
            verdict = child.verdict()
            shutil.rmtree(folder / f"case-{child.number}", ignore_errors=True)
            if verdict.ran_out_of_time and child.number not in again:
                again.add(child.number)  # the machine may have stood still: hangs come twice
                left.append(child.number)
                continue
            verdicts.append(verdict)
            _say(verdicts, total, seed, say)
    return sorted(verdicts, key=lambda verdict: verdict.number)


def _make(space: Path) -> ScoreVerdict:
    Scored(space)
    return ScoreVerdict(-1, "clean", "harmless")


def _case(folder: Path, seed: int, number: int) -> "_Child":
    def run() -> ScoreVerdict:
        where = folder / f"case-{number}"
        where.mkdir()
        (folder / "elsewhere").mkdir(exist_ok=True)
        os.chdir(folder / "elsewhere")
        return judge(number, draw_case(seed, number, Scored(folder / "space"), where))

    return _Child(number, run, 2 * SECONDS)


def _say(verdicts: list[ScoreVerdict], total: int, seed: int, say: Callable[[str], None]) -> None:
    last = verdicts[-1]
    if not last.is_right:
        say(
            f"input {last.number}: {last.verdict.upper()}: {last.name}: {last.why}\n  {last.said}\n"
            f"  again: python -m benchmarks.faults score --only-input {last.number} --seed {seed}"
        )
    if len(verdicts) % 100 == 0 or len(verdicts) == total:
        say(f"input {len(verdicts)}/{total}")


class _Child:
    """A forked process that answers with a verdict, or dies."""

    def __init__(self, number: int, work: Callable[[], ScoreVerdict], seconds: float) -> None:
        self.number, self._end = number, time.monotonic() + seconds
        self.pipe, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.pipe)
            _work(work, write)
        os.close(write)
        self._said = b""
        self._status: int | None = None

    def has_ended(self) -> bool:
        """Whether it has; one that hangs is killed."""
        if time.monotonic() > self._end:
            os.kill(self._pid, signal.SIGKILL)
        while select.select([self.pipe], [], [], 0)[0]:
            some = os.read(self.pipe, 65_536)
            self._said += some
            if not some:
                return True
        return False

    def verdict(self) -> ScoreVerdict:
        """What it said, when it has ended."""
        while not self.has_ended():
            select.select([self.pipe], [], [], 1.0)
        late = time.monotonic() > self._end
        os.close(self.pipe)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        try:
            found: dict[str, Any] = json.loads(self._said)
        except ValueError:
            why = f"the process ended with {status}"
            return ScoreVerdict(self.number, "?", "traceback", why, ran_out_of_time=late)
        return ScoreVerdict(**found)


def _work(work: Callable[[], ScoreVerdict], write: int) -> None:
    """Never returns: what the parent would do next is not this process' business."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + _MORE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            said = work()
        except BaseException:
            said = ScoreVerdict(-1, "the harness", "traceback", traceback.format_exc()[-900:])
        content = json.dumps(said.as_json()).encode()
        while content:
            content = content[os.write(write, content) :]
    finally:
        os._exit(0)
