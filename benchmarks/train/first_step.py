"""The command line until its first training step: `python -m benchmarks.train.first_step train …`.

Everything is `mmoe`'s own, except that what it reports progress to ends the process.
"""

import os
import sys

import mmoe.cli
import mmoe.cli.commands
from benchmarks.train.pacer import PacedReporter


class FirstStep:
    """The first step is the last."""

    def started(self) -> None:
        """Nothing."""

    def stepped(self, rows: int) -> None:
        """Ends the process."""
        os._exit(0)


if __name__ == "__main__":
    mmoe.cli.commands.reporter = lambda quiet: PacedReporter(FirstStep())
    mmoe.cli.main()
    sys.exit("training ended without a step")
