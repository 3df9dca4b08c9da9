"""The program behind `python -m benchmarks.train`: options, races, tables, the last line."""

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

from benchmarks.racing.last_line import gflops, print_json, print_rates
from benchmarks.racing.machine import processor
from benchmarks.racing.products import ProductRates
from benchmarks.racing.races import Race, run_races
from benchmarks.racing.results import Result, in_order, missed, print_table
from benchmarks.train.bench import Bench
from benchmarks.train.command_races import COMMAND_RACES
from benchmarks.train.peer_races import PEER_RACES
from benchmarks.train.quality import QUALITY_RACES
from benchmarks.train.speed_races import SPEED_RACES
from benchmarks.train.step_tables import print_step_tables
from benchmarks.train.targets import TARGETS
from mmoe.ops import extension_status

RACES: tuple[Race[Bench], ...] = (*SPEED_RACES, *PEER_RACES, *QUALITY_RACES, *COMMAND_RACES)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    console = Console(stderr=True, highlight=False)
    temporary = Path(tempfile.mkdtemp(prefix="mmoe-bench-train-"))
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
    try:
        results, failed, skipped = _run(bench, arguments.only or list(TARGETS))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    context = _context(arguments, bench, time.perf_counter() - started)
    _print(results, skipped, context)
    print_json(results, TARGETS, failed, {**context, "skipped": skipped}, arguments.out)
    if failed:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train")
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), metavar="KEY")
    parser.add_argument("--seconds", type=float, default=90.0, help="of a race")
    parser.add_argument("--rows", type=int, default=400_000, help="of big")
    parser.add_argument("--seeds", type=int, default=5, help="of auc_gap and ne_gap")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path, help="logs are kept there for the next run")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY.PATH=VALUE", help="changes our config"
    )
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser.parse_args()


def _run(
    bench: Bench, wanted: Sequence[str]
) -> tuple[list[Result], dict[str, str], dict[str, str]]:
    """Results in the order of the table, and why other keys have none: failed, skipped."""
    results, failed, skipped = run_races(RACES, bench, wanted, bench.say)
    limit = bench.rates.limit
    finished = [r.as_share_of(limit(r.product_rate)) if r.product_rate else r for r in results]
    return in_order(finished, TARGETS), failed, skipped


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


def _print(results: Sequence[Result], skipped: dict[str, str], context: dict[str, Any]) -> None:
    print_step_tables(results)
    title = "Paired ratios (ms: of 4,096 rows): median and 10–90 % range"
    print_table(results, TARGETS, title)
    for key, reason in skipped.items():
        print(f"skipped {key}: {reason}")
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print(f"mmoe.ops: {context['extension']}")
    print_rates(context["product_gflops"])
    names = ", ".join(missed(results, TARGETS)) or "none"
    print(f"{context['seconds']} s; missed: {names}")
