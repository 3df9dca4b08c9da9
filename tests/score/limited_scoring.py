"""`python -m tests.score.limited_scoring RUN DATA MIB…`: scores under limits on memory.

For each number of MiB a process begins to score with so much address space beyond what the imports
take. Prints a JSON list of exit codes and last words; −9 is one that waited for ever.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.processes import ROOT, limit_memory, one_thread

SECONDS = 60.0
MORE_MIB = (1, 8, 24, 48, 96, 192, 384, 768)


@dataclass(frozen=True)
class LimitedScoring:
    """How one ended: the limit beyond the imports, the exit code, what it said last."""

    mib: int
    code: int
    said: str

    @property
    def passed(self) -> bool:
        """It scored, or said in one line that memory is short."""
        one_line = self.said.startswith("mmoe: error: not enough memory") and "\n" not in self.said
        return self.code == 0 or (self.code == 2 and one_line)


def limited_scorings(
    run: Path, data: Path, mib: Sequence[int] = MORE_MIB, seconds: float = SECONDS
) -> list[LimitedScoring]:
    """Scores once under each limit."""
    command = [sys.executable, "-m", __name__, str(run), str(data), str(seconds), *map(str, mib)]
    # As the command line sets it where it begins under a limit, which here comes after the imports
    environment = {**one_thread(), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    ended = json.loads(done.stdout.splitlines()[-1])
    return [LimitedScoring(*one) for one in ended]


def main() -> None:
    run, data, seconds, *mib = sys.argv[1:]
    import mmoe.score
    import mmoe.train  # noqa: F401  # as much as a command imports

    with tempfile.TemporaryDirectory(prefix="mmoe-limited-") as folder:
        ended = [_one(run, data, float(seconds), int(more), Path(folder)) for more in mib]
    print(json.dumps(ended))


def _one(run: str, data: str, seconds: float, mib: int, folder: Path) -> tuple[int, int, str]:
    """A fork: the imports, which take the longest, are shared."""
    log, output = folder / f"{mib}.log", folder / f"{mib}.parquet"
    child = os.fork()
    if child == 0:
        _score(run, data, output, mib, log)
    end = time.monotonic() + seconds
    while (waited := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(waited[1])
    return mib, code, log.read_text(encoding="utf-8", errors="replace").strip()


def _score(run: str, data: str, output: Path, mib: int, log: Path) -> None:
    from mmoe import cli

    stream = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    limit_memory(mib << 20)
    sys.argv = ["mmoe", "score", run, "--input", data, "--output", str(output), "--quiet"]
    code = 1
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException as error:
        sys.stderr.write(f"Traceback: {error!r}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
