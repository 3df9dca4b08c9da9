"""All cases of a seed, judged by processes that may die of them."""

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

from benchmarks.faults.commands import ROOT, one_thread
from benchmarks.faults.inputs.judge import SECONDS, Verdict

# A case runs its command, and the same on clean rows; a workspace is made before the first
_ANSWER_SECONDS = 4 * SECONDS


def judge_inputs(
    folder: Path,
    numbers: Iterable[int],
    seed: int,
    say: Callable[[str], None],
    *,
    jobs: int = 1,
    real: int = 0,
) -> list[Verdict]:
    """Judges the cases; what fails is said at once, with how to see it again.

    Args:
        folder: For the cases' files.
        numbers: Which ones.
        seed: Of all.
        say: Told what fails.
        jobs: Processes that judge.
        real: So many of the cases run as a command of their own, not as a call.
    """
    left: SimpleQueue[tuple[int, bool]] = SimpleQueue()
    numbers = list(numbers)
    every = max(1, len(numbers) // real) if real else 0
    for place, number in enumerate(numbers):
        left.put((number, real > 0 and place % every == every - 1))
    verdicts: list[Verdict] = []

    def work(worker_folder: Path) -> None:
        worker = _Worker(worker_folder, seed)
        while True:
            try:
                number, as_process = left.get_nowait()
            except Empty:
                return worker.close()
            verdicts.append(worker.judge(number, real=as_process))
            _say(verdicts, len(numbers), seed, say)

    with ThreadPoolExecutor(jobs) as threads:
        for done in [threads.submit(work, folder / f"worker-{n}") for n in range(jobs)]:
            done.result()
    return sorted(verdicts, key=lambda verdict: verdict.number)


def _say(verdicts: list[Verdict], total: int, seed: int, say: Callable[[str], None]) -> None:
    last = verdicts[-1]
    if last.verdict in ("failure", "wrong answer", "traceback"):
        say(
            f"input {last.number}: {last.verdict.upper()}: {last.command}, {last.fault}: "
            f"{last.why}\n  {last.said}\n  again: python -m benchmarks.faults train --kills 0 "
            f"--seed {seed} --only-input {last.number}"
        )
    if len(verdicts) % 100 == 0 or len(verdicts) == total:
        say(f"input {len(verdicts)}/{total}")


class _Worker:
    """A process that judges cases; a new one comes where it died."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.process: subprocess.Popen[bytes] | None = None

    def judge(self, number: int, *, real: bool) -> Verdict:
        """One case; a process that dies or says nothing is a failure of the case."""
        if self.process is None:
            self.process = self._start()
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{number} {'real' if real else 'fast'}\n".encode())
        process.stdin.flush()
        answered = select.select([process.stdout], [], [], _ANSWER_SECONDS)[0]
        line = process.stdout.readline() if answered else b""
        if line:
            return Verdict(**json.loads(line))
        self.close()
        why = "the process died" if answered else "the process hangs"
        log = (self.folder.with_suffix(".log")).read_text(encoding="utf-8", errors="replace")
        return Verdict(number, "?", "?", "traceback", why, log.strip()[-2_000:])

    def close(self) -> None:
        """Ends the process."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None
        if not (self.folder / "run-stream" / "metrics.json").exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> subprocess.Popen[bytes]:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        module = "benchmarks.faults.inputs.worker"
        with self.folder.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, str(self.folder), str(self.seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=one_thread(),
            )
