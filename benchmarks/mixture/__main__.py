"""Races our layer against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.mixture [--device cpu|cuda] [--threads N] [--rounds N] [--only KEY ...]
                             [--seconds S] [--out FILE]
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.mixture.races import (
    AUTO_RACES,
    DENSE_RACES,
    GATE_RACES,
    SPARSE_RACES,
    TARGETS,
    Bench,
    Race,
    format_choices,
)
from benchmarks.racing.harness import (
    FEWEST_ROUNDS,
    Clock,
    NothingToMeasure,
    ProductRates,
    Result,
    gflops,
    in_order,
    missed,
    print_json,
    print_rates,
    print_table,
    processor,
    shares_of,
)
from mmoe.ops import extension_status

RACES = (*DENSE_RACES, *SPARSE_RACES, *GATE_RACES, *AUTO_RACES)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    races = [race for race in RACES if set(race.keys) & set(arguments.only or TARGETS)]
    console = Console(stderr=True, highlight=False)
    clock = Clock(
        device=arguments.device,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        say=lambda text: console.print(text, markup=False, soft_wrap=True),
    )
    bench = Bench(clock, ProductRates(arguments.device))
    results, failed, skipped = _run(bench, races, console)
    context = _context(arguments, bench, time.perf_counter() - started)
    context |= {"skipped": skipped} if skipped else {}
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    _print(results, context, enough)
    print_json(results, TARGETS, failed, context, arguments.out, enough_rounds=enough)
    if failed:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixture")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--rounds", type=int, help="of every race; default: as many as fit into --seconds"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of a race")
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), metavar="KEY")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser.parse_args()


def _run(
    bench: Bench, races: Sequence[Race], console: Console
) -> tuple[list[Result], dict[str, str], dict[str, str]]:
    """Results in the order of the table, and why other keys have none: failed, skipped."""
    results: list[Result] = []
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    bench.rates.measure()
    # A bar on a terminal; elsewhere the lines alone.
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for number, race in enumerate(progress.track(races, description="races"), start=1):
            bench.clock.say(f"{number}/{len(races)} {', '.join(race.keys)}")
            try:
                results += race.run(bench)
            except NothingToMeasure as reason:
                bench.clock.say(f"skipped: {reason}")
                skipped |= dict.fromkeys(race.keys, str(reason))
            # What one race cannot do (numbers that differ, memory) must not cost all the others.
            except (ValueError, RuntimeError) as error:
                bench.clock.say(f"FAILED: {error}")
                failed |= dict.fromkeys(race.keys, str(error))
            bench.rates.measure()
    shares, without = shares_of(results, bench.rates)
    return in_order(shares, TARGETS), failed, skipped | without


def _context(arguments: argparse.Namespace, bench: Bench, seconds: float) -> dict[str, Any]:
    cuda = arguments.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else processor(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "product_gflops": gflops(bench.rates),
        "seconds": round(seconds),
    }


def _print(results: Sequence[Result], context: dict[str, Any], enough_rounds: bool) -> None:
    for result in results:
        if result.key == "auto_regret":
            print(format_choices(result.details))
    print_table(results, TARGETS, enough_rounds=enough_rounds)
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print(f"mmoe.ops: {context['extension']}")
    print_rates(context["product_gflops"])
    outcome = f"missed: {', '.join(missed(results, TARGETS)) or 'none'}"
    if not enough_rounds:
        outcome = (
            f"fewer than {FEWEST_ROUNDS} rounds: this shows that it runs, and measures nothing"
        )
    print(f"{context['seconds']} s; {outcome}")


if __name__ == "__main__":
    main()
