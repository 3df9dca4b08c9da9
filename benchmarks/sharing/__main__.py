"""Races sharing against going without it, prints a table and, last, one JSON line.

python -m benchmarks.sharing [--device cpu|cuda] [--threads N] [--rounds N] [--only KEY ...]
                             [--seconds S] [--seeds N] [--rows N] [--out FILE]
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.racing.clock import FEWEST_ROUNDS, Clock
from benchmarks.racing.last_line import print_json
from benchmarks.racing.machine import processor
from benchmarks.racing.races import run_races
from benchmarks.racing.results import in_order, print_table
from benchmarks.sharing import (
    domain_quality,
    domain_steps,
    quality,
    request_races,
    step_races,
    task_races,
)
from benchmarks.sharing.bench import Bench
from benchmarks.sharing.targets import TARGETS
from mmoe.ops import extension_status

FEWEST_SEEDS = 10
RACES = (
    *step_races.RACES,
    *request_races.RACES,
    *task_races.RACES,
    *domain_steps.RACES,
    *quality.RACES,
    *domain_quality.RACES,
)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    console = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    clock = Clock(
        device=arguments.device, rounds=arguments.rounds, seconds=arguments.seconds, say=say
    )
    bench = Bench(clock, arguments.seeds, arguments.rows)
    results, failed, skipped = run_races(RACES, bench, arguments.only or tuple(TARGETS), say)
    results = in_order(results, TARGETS)
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    enough = enough and arguments.seeds >= FEWEST_SEEDS
    context = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else processor(),
        "threads": arguments.threads,
        "seeds": arguments.seeds,
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "seconds": round(time.perf_counter() - started),
        **({"skipped": skipped} if skipped else {}),
    }
    print_table(results, TARGETS, enough_rounds=enough)
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print_json(results, TARGETS, failed, context, arguments.out, enough_rounds=enough)
    if failed:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--rounds", type=int, help="of every race; default: as many as fit into --seconds"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of a race")
    parser.add_argument("--seeds", type=int, default=FEWEST_SEEDS, help="of compared trainings")
    parser.add_argument("--rows", type=int, default=40_000, help="of the logs of trainings")
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), metavar="KEY")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
