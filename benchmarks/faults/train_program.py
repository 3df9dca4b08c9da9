"""`python -m benchmarks.faults train`: kills, broken inputs, a limit on memory, growth."""

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.faults.ending import end, teller
from benchmarks.faults.growth import Growth, measure_growth, print_growth
from benchmarks.faults.inputs.judge import Verdict
from benchmarks.faults.inputs.pool import judge_inputs
from benchmarks.faults.kills import Killed, kill_runs
from benchmarks.faults.memory_limit import LimitedRuns, limited_runs

VERDICTS = ("clear error", "right answer", "wrong answer", "failure", "traceback")


def main(arguments: Sequence[str]) -> int:
    """Prints a table and, last, the counts; 1 where anything failed."""
    options = _options(arguments)
    folder = Path(tempfile.mkdtemp(prefix="mmoe-faults-"))
    say = teller()
    killed, verdicts, limited = _run(options, folder, say)
    _print_tables(killed, verdicts, limited)
    growth = _growth(options, folder, say)
    counts = _counts(killed, verdicts)
    right = counts["clear_errors"] + counts["right_answers"]
    passed = counts["bit_identical"] == counts["kills"] and right == counts["inputs"]
    passed &= limited is None or limited.passed
    passed &= growth is None or growth.passed
    return end(counts, passed, folder, say)


def _run(
    options: argparse.Namespace, folder: Path, say: Callable[[str], None]
) -> tuple[list[Killed], list[Verdict], LimitedRuns | None]:
    only = options.only_input
    numbers = range(options.inputs) if only is None else [only]
    killed: list[Killed] = []
    if options.kills:
        (folder / "kills").mkdir()
        killed = kill_runs(folder / "kills", options.kills, options.seed, say)
    real = options.real if only is None else 0
    verdicts = judge_inputs(
        folder / "inputs", numbers, options.seed, say, jobs=options.jobs, real=real
    )
    limited = None
    if not options.no_memory_limit and only is None:
        limited = limited_runs(folder / "limit", say)
    return killed, verdicts, limited


def _growth(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> Growth | None:
    if options.no_growth or options.only_input is not None:
        return None
    growth = measure_growth(folder / "growth", say)
    print_growth(growth)
    return growth


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults train")
    parser.add_argument("--kills", type=int, default=20, help="runs that are killed and resumed")
    parser.add_argument("--inputs", type=int, default=1000, help="broken inputs")
    parser.add_argument("--seed", type=int, default=0, help="of moments and inputs")
    parser.add_argument("--real", type=int, default=20, help="inputs run as processes of their own")
    parser.add_argument("--only-input", type=int, metavar="NUMBER", help="judges this one alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="inputs at a time")
    parser.add_argument(
        "--no-memory-limit", action="store_true", help="leaves out the run under a limit"
    )
    parser.add_argument(
        "--no-growth", action="store_true", help="leaves out the runs over many groups and ids"
    )
    return parser.parse_args(arguments)


def _counts(killed: Sequence[Killed], verdicts: Sequence[Verdict]) -> dict[str, int]:
    found = Counter(verdict.verdict for verdict in verdicts)
    return {
        "kills": len(killed),
        "resumed": sum(one.resumed for one in killed),
        "bit_identical": sum(one.bit_identical for one in killed),
        "inputs": len(verdicts),
        "clear_errors": found["clear error"],
        "right_answers": found["right answer"],
        "tracebacks": found["traceback"],
        "silently_wrong": found["wrong answer"],
    }


def _print_tables(
    killed: Sequence[Killed], verdicts: Sequence[Verdict], limited: LimitedRuns | None
) -> None:
    console = Console(width=120, highlight=False)
    table = Table(title="kill -9, then --resume", title_justify="left", box=None)
    for name in ("input", "kills", "inside a checkpoint", "killed twice", "resumed", "same bits"):
        table.add_column(name, justify="left" if name == "input" else "right")
    for how in dict.fromkeys(one.name for one in killed):
        mine = [one for one in killed if one.name == how]
        parts = (
            len(mine),
            sum(one.writing for one in mine),
            sum(len(one.moments) > 1 for one in mine),
            sum(one.resumed for one in mine),
            sum(one.bit_identical for one in mine),
        )
        table.add_row(how, *map(str, parts))
    console.print(table)
    console.print(_verdict_table(verdicts))
    if limited is not None:
        mebi = 2**20
        console.print(
            f"memory limit: {limited.decoded // mebi:,} MiB of rows with {limited.limit // mebi:,} "
            f"MiB of address space ({limited.small_peak // mebi:,} of them a small run's): "
            f"{'streamed to the end, refused in memory' if limited.passed else 'FAILED'}",
            soft_wrap=True,
        )


def _verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Verdicts by fault; all layouts of the data together."""
    table = Table(title="\nbroken inputs", title_justify="left", box=None)
    table.add_column("fault")
    for name in VERDICTS:
        table.add_column(name, justify="right")
    by_fault: dict[str, Counter[str]] = {}
    for one in verdicts:
        by_fault.setdefault(one.fault.split(" (")[0], Counter())[one.verdict] += 1
    for fault, counts in sorted(by_fault.items()):
        table.add_row(fault.replace("_", " "), *(str(counts[name] or "·") for name in VERDICTS))
    total = Counter(one.verdict for one in verdicts)
    table.add_row("all", *(str(total[name]) for name in VERDICTS))
    return table
