"""One scoring in a process of its own: `python -P scoring.py JSON`, of whatever mmoe it imports.

A script, not a module of this package, and without its imports: the mmoe of an earlier commit runs
it too. The last line printed says when what was done:

    imports    from the first line of `main` until mmoe's scoring is imported
    loading    from the call until rows are read: the run is opened, the model loaded, files checked
    seconds    from there until the call is back, its output complete under its name
    rows       scored
    peak       resident bytes at most (VmHWM, which begins at 0 with this program)
    mmoe       the package that was imported
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FirstRow:
    """In place of the library's reporter: when rows begin to be read, as progress has it."""

    def __init__(self) -> None:
        self.at = 0.0

    def say(self, text: str) -> None:
        """Nothing."""

    @contextmanager
    def track(
        self, what: str, total: int | None, unit: str, *, done: int = 0
    ) -> Iterator["FirstRow"]:
        self.at = time.perf_counter()
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        """Nothing."""


def main() -> None:
    started = time.perf_counter()
    asked = json.loads(sys.argv[1])
    if asked["cores"]:
        os.sched_setaffinity(0, asked["cores"])
    import mmoe

    getattr(mmoe, "tune_process", lambda: None)()  # an earlier mmoe does it when it is imported
    from mmoe.score import score_files

    try:
        from mmoe.run import RunDirectory
    except ImportError:  # an earlier mmoe
        from mmoe.score import RunDirectory  # pyright: ignore[reportAttributeAccessIssue]

    imported = time.perf_counter()
    first = FirstRow()
    run = RunDirectory.open(Path(asked["run"]))
    rows = score_files(run, asked["source"], asked["output"], reporter=first)
    ended = time.perf_counter()
    found = {
        "imports": imported - started, "loading": first.at - imported,
        "seconds": ended - first.at, "rows": rows, "peak": _peak_bytes(),
        "mmoe": str(Path(mmoe.__file__).parent),
    }  # fmt: skip
    print(json.dumps(found))


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main()
