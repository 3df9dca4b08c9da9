"""The program behind `python -m benchmarks.parallel`: options, races, tables, the last line."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.parallel.layer_races import LAYER_RACES
from benchmarks.parallel.step_races import STEP_RACES
from benchmarks.parallel.tables import print_costs, print_wire
from benchmarks.parallel.targets import TARGETS
from benchmarks.racing.last_line import gflops, print_json, print_rates
from benchmarks.racing.machine import processor
from benchmarks.racing.products import ProductRates
from benchmarks.racing.races import Race, run_races
from benchmarks.racing.results import Result, in_order, missed, print_table
from benchmarks.train.bench import Bench
from mmoe.ops import extension_status

RACES: tuple[Race[Bench], ...] = (*LAYER_RACES, *STEP_RACES)
THREADS = 2  # of one process; ranks have one each


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(THREADS)
    started = time.perf_counter()
    console = Console(stderr=True, highlight=False)
    temporary = Path(tempfile.mkdtemp(prefix="mmoe-bench-parallel-"))
    bench = Bench(
        folder=arguments.folder or temporary / "logs",
        runs=temporary,
        rows=arguments.rows,
        seconds=arguments.seconds,
        seeds=1,
        threads=THREADS,
        overrides=tuple(arguments.set),
        rates=ProductRates("cpu"),
        say=lambda text: console.print(text, markup=False, soft_wrap=True),
    )
    try:
        wanted = arguments.only or list(TARGETS)
        results, failed, skipped = run_races(RACES, bench, wanted, bench.say)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    results = in_order(results, TARGETS)
    context = _context(arguments, bench, time.perf_counter() - started)
    _print(results, skipped, context)
    print_json(results, TARGETS, failed, {**context, "skipped": skipped}, arguments.out)
    if failed:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel")
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), metavar="KEY")
    parser.add_argument("--seconds", type=float, default=90.0, help="of a race")
    parser.add_argument("--rows", type=int, default=400_000, help="of big")
    parser.add_argument("--folder", type=Path, help="logs are kept there for the next run")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY.PATH=VALUE", help="changes every config"
    )
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser.parse_args()


def _context(arguments: argparse.Namespace, bench: Bench, seconds: float) -> dict[str, Any]:
    return {
        "device": processor(),
        "threads": THREADS,
        "rows": arguments.rows,
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "overrides": list(bench.overrides),
        "product_gflops": gflops(bench.rates),
        "seconds": round(seconds),
    }


def _print(results: Sequence[Result], skipped: dict[str, str], context: dict[str, Any]) -> None:
    print_wire(results)
    print_costs(results)
    title = "Paired ratios (ms of a whole step: of 4,096 rows): median and 10–90 % range"
    print_table(results, TARGETS, title)
    for key, reason in skipped.items():
        print(f"skipped {key}: {reason}")
    print(f"{context['device']}, {THREADS} ranks of one thread, torch {context['torch']}")
    print(f"mmoe.ops: {context['extension']}")
    print_rates(context["product_gflops"])
    names = ", ".join(missed(results, TARGETS)) or "none"
    print(f"{context['seconds']} s; missed: {names}")
