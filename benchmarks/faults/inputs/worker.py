"""`python -m benchmarks.faults.inputs.worker FOLDER SEED`: judges the cases it is told.

Case numbers come on standard input, one a line; verdicts go out, one JSON line each.
"""

import json
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.faults.inputs.cases import draw_case
from benchmarks.faults.inputs.judge import judge
from benchmarks.faults.inputs.workspace import Workspace

# On top of what the process has; a damaged size must not take the machine's memory
_MORE_BYTES = 4 << 30


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    space = Workspace(folder)
    _limit_memory()
    for line in sys.stdin:
        number, real = line.split()
        where = Path(tempfile.mkdtemp(prefix=f"case-{number}-", dir=folder))
        try:
            case = draw_case(seed, int(number), space, where)
            verdict = judge(case, space, where, real=real == "real")
        finally:
            shutil.rmtree(where, ignore_errors=True)
        answers.write(json.dumps(verdict.as_json()) + "\n")
        answers.flush()


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + _MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
