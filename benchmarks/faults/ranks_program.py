"""`python -m benchmarks.faults ranks`: kills one rank of several, again and again."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.faults.ending import end, teller
from benchmarks.faults.rank_kills import KilledRank, kill_ranks


def main(arguments: Sequence[str]) -> int:
    """Prints a table and, last, the counts; 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults ranks")
    parser.add_argument("--kills", type=int, default=20, help="runs of which a rank is killed")
    parser.add_argument("--ranks", type=int, default=2, help="of each run")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="mmoe-ranks-"))
    say = teller()
    killed = kill_ranks(folder, options.kills, options.ranks, options.seed, say)
    _print_table(killed)
    counts = {
        "kills": len(killed),
        "survivors_ended": sum(one.survivors_ended for one in killed),
        "resumed": sum(one.resumed for one in killed),
        "same_result": sum(one.same_result for one in killed),
    }
    passed = set(counts.values()) == {len(killed)}
    return end(counts, passed, folder, say)


def _print_table(killed: Sequence[KilledRank]) -> None:
    table = Table(title="kill -9 of one rank, then --resume", title_justify="left", box=None)
    columns = ("run", "kills", "inside a checkpoint", "survivors ended", "resumed", "same result")
    for name in columns:
        table.add_column(name, justify="left" if name == "run" else "right")
    for kind in dict.fromkeys(one.name for one in killed):
        mine = [one for one in killed if one.name == kind]
        parts = (
            len(mine),
            sum(one.writing for one in mine),
            sum(one.survivors_ended for one in mine),
            sum(one.resumed for one in mine),
            sum(one.same_result for one in mine),
        )
        table.add_row(kind, *map(str, parts))
    Console(width=120, highlight=False).print(table)
