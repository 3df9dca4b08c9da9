"""What programs that race whole steps share: options, races, tables, the last line."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.racing.last_line import gflops, print_json, print_races, shares_of
from benchmarks.racing.machine import processor
from benchmarks.racing.products import ProductRates
from benchmarks.racing.races import Race, run_races
from benchmarks.racing.results import Result, Target, in_order
from benchmarks.train.bench import Bench
from mmoe.ops import extension_status


@dataclass(frozen=True, kw_only=True)
class Program:
    """`python -m benchmarks.NAME`.

    Attributes:
        name: Of the package.
        races: In turn.
        targets: Of every key.
        title: Of the table.
        print_details: What comes before the table.
        threads: Of one process; None: an option.
        changes: What `--set` changes.
        seeds: Whether the number of seeds is an option.
    """

    name: str
    races: Sequence[Race[Bench]]
    targets: Mapping[str, Target]
    title: str
    print_details: Callable[[Sequence[Result]], None]
    threads: int | None = None
    changes: str = "our config"
    seeds: bool = False

    def run(self) -> None:
        """Prints tables and, last, one JSON line; exits with 1 where a race failed."""
        arguments = self._arguments()
        torch.set_num_threads(arguments.threads)
        started = time.perf_counter()
        console = Console(stderr=True, highlight=False)
        temporary = Path(tempfile.mkdtemp(prefix=f"mmoe-bench-{self.name}-"))
        bench = Bench(
            folder=arguments.folder or temporary / "logs",
            runs=temporary,
            rows=arguments.rows,
            seconds=arguments.seconds,
            seeds=arguments.seeds,
            threads=arguments.threads,
            overrides=tuple(arguments.set),
            rates=ProductRates("cpu"),
            say=lambda text: console.print(text, markup=False, soft_wrap=True),
        )
        wanted = arguments.only or list(self.targets)
        try:
            found, failed, skipped = run_races(self.races, bench, wanted, bench.say)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        shares, without = shares_of(found, bench.rates)
        skipped |= without
        results = in_order(shares, self.targets)
        context = _context(arguments, bench, time.perf_counter() - started)
        self.print_details(results)
        print_races(results, self.targets, self.title, skipped, context)
        context["skipped"] = skipped
        print_json(results, self.targets, failed, context, arguments.out)
        if failed:
            sys.exit(1)

    def _arguments(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}")
        parser.add_argument("--only", nargs="+", choices=tuple(self.targets), metavar="KEY")
        parser.add_argument("--seconds", type=float, default=90.0, help="of a race")
        parser.add_argument("--rows", type=int, default=400_000, help="of big")
        parser.set_defaults(seeds=1, threads=self.threads)
        if self.seeds:
            parser.add_argument("--seeds", type=int, default=5, help="of auc_gap and ne_gap")
        if self.threads is None:
            parser.add_argument("--threads", type=int, default=torch.get_num_threads())
        parser.add_argument("--folder", type=Path, help="logs are kept there for the next run")
        parser.add_argument(
            "--set", nargs="+", default=[], metavar="KEY.PATH=VALUE", help=f"changes {self.changes}"
        )
        parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
        return parser.parse_args()


def _context(arguments: argparse.Namespace, bench: Bench, seconds: float) -> dict[str, Any]:
    return {
        "device": processor(),
        "threads": arguments.threads,
        "rows": arguments.rows,
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "overrides": list(bench.overrides),
        "product_gflops": gflops(bench.rates),
        "seconds": round(seconds),
    }
