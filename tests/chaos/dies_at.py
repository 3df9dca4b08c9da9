"""`python -m tests.chaos.dies_at N RUN_DIR train …`: mmoe, killed at a file operation.

The process sends itself SIGKILL just before the N-th time that it opens, makes, links, renames or
removes something below RUN_DIR. With N = 0 it lives, and prints how often it did.
"""

import os
import runpy
import signal
import sys
from typing import Any

_OPERATIONS = frozenset({"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir"})


def main() -> None:
    wanted, folder, *rest = sys.argv[1:]
    counted = _Counter(int(wanted), folder)
    sys.addaudithook(counted.hook)
    sys.argv = ["mmoe", *rest]
    try:
        runpy.run_module("mmoe", run_name="__main__")
    finally:
        sys.stderr.write(f"\noperations: {counted.seen}\n")


class _Counter:
    def __init__(self, wanted: int, folder: str) -> None:
        self.wanted, self.folder, self.seen = wanted, folder, 0

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _OPERATIONS or not str(arguments[0]).startswith(self.folder):
            return
        if "tensorboard" in str(arguments[0]):
            return  # written by a thread of its own: not the same operation twice
        self.seen += 1
        if self.seen == self.wanted:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
