"""Contestants as processes of their own, of which one runs at a time.

Each has its own allocator, threads and caches of compiled products, as it would in real life; all
others wait for their next command meanwhile.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.train.spec import Spec

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS, ANSWER_SECONDS = 600.0, 300.0


class Contestant:
    """The process of one contestant.

    Args:
        spec: Which one.
        python: Its interpreter; None: this one.
    """

    def __init__(self, spec: Spec, python: str | None = None) -> None:
        self.spec = spec
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [python or sys.executable, "-m", "benchmarks.train.worker", spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=ROOT,
            env=environment(spec.threads),
        )

    def wait_until_ready(self) -> None:
        """Until its first step is done."""
        self._answer(READY_SECONDS)

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Sends a command and waits for the answer.

        Raises:
            RuntimeError: The process died or took too long; the message ends with its last words.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("has died") from None
        return self._answer(ANSWER_SECONDS)

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                with _ignoring_broken_pipe():
                    pipe.close()

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        # An answer is one line, and only one is ever under way: nothing is left in a buffer
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise self._failure(f"did not answer within {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise self._failure("has died")
        return json.loads(line)

    def _failure(self, what: str) -> RuntimeError:
        self.log.flush()
        self.log.seek(0)
        words = self.log.read().strip().splitlines()[-1:] or ["it said nothing"]
        name = f"{self.spec.kind} on {self.spec.workload} in {self.spec.precision}"
        return RuntimeError(f"{name} {what}: {words[0]}")


@contextmanager
def contestants(
    specs: Mapping[str, Spec], pythons: Mapping[str, str] | None = None
) -> Iterator[dict[str, Contestant]]:
    """Starts all of them, and comes back when each has done its first step."""
    with ExitStack() as stack:
        started = {}
        for name, spec in specs.items():
            started[name] = Contestant(spec, (pythons or {}).get(name))
            stack.callback(started[name].close)
        for contestant in started.values():
            contestant.wait_until_ready()
        yield started


def environment(threads: int) -> dict[str, str]:
    """Of every process that is measured: ours, with what `import mmoe` has set for OpenMP."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


@contextmanager
def _ignoring_broken_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        return
