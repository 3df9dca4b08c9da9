"""Races modes of dispatchers over several hosts, prints tables and, last, one JSON line.

python -m benchmarks.network [--only KEY ...] [--seconds S] [--out FILE]
"""

import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.network.hosts import why_not
from benchmarks.network.races import (
    ADAPTIVE_RACES,
    AUTO,
    EXCHANGE_RACES,
    FIXED,
    LOAD_RACES,
    STEP_RACES,
    TARGETS,
)
from benchmarks.racing.harness import Result
from benchmarks.train.races import Program


def _details(results: Sequence[Result]) -> None:
    """Milliseconds of every mode in every setting of the grid."""
    for result in results:
        if result.key == "adaptive_regret":
            table = Table(title="The grid, ms", title_justify="left", box=SIMPLE_HEAD)
            for name in ("setting", "carries", *FIXED, AUTO, "regret"):
                table.add_column(name, justify="left" if name == "setting" else "right")
            for row in result.details:
                ms = (f"{row['ms'][name]:,.1f}" for name in (*FIXED, AUTO))
                table.add_row(row["setting"], row["carries"], *ms, f"{row['regret']:.2f}")
            Console(width=200, highlight=False).print(table)


PROGRAM = Program(
    name="network",
    races=(*EXCHANGE_RACES, *LOAD_RACES, *ADAPTIVE_RACES, *STEP_RACES),
    targets=TARGETS,
    title="Paired ratios: median and 10–90 % range",
    print_details=_details,
    threads=1,
    changes="every config",
)


def main() -> None:
    """Races where hosts can be built; else says in one line why not."""
    reason = why_not()
    if reason is not None:
        sys.stderr.write(f"benchmarks.network: nothing measured: {reason}\n")
        return
    # Hosts are removed on the way out
    signal.signal(signal.SIGTERM, _end)
    PROGRAM.run()


def _end(number: int, frame: Any) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
