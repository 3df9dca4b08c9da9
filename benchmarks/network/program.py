"""The program behind `python -m benchmarks.network`."""

import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.network.adaptive_races import ADAPTIVE_RACES, AUTO, FIXED
from benchmarks.network.exchange_races import EXCHANGE_RACES
from benchmarks.network.load_races import LOAD_RACES
from benchmarks.network.namespaces import why_not
from benchmarks.network.step_races import STEP_RACES
from benchmarks.network.targets import TARGETS
from benchmarks.racing.results import Result
from benchmarks.train.running import Program


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
