"""Converts networks, compares them with the dense ones, prints a table and, last, one JSON line.

python -m benchmarks.convert [--threads N] [--rounds N] [--only KEY ...] [--seconds S]
                             [--seeds N] [--out FILE]
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.convert import (
    equal_races,
    layer_races,
    line_races,
    picture_races,
    text_races,
)
from benchmarks.convert.bench import FEWEST_SEEDS, Bench
from benchmarks.convert.targets import BESIDE, TARGETS
from benchmarks.racing.clock import FEWEST_ROUNDS, Clock
from benchmarks.racing.last_line import print_json
from benchmarks.racing.machine import processor
from benchmarks.racing.races import run_races
from benchmarks.racing.results import in_order, print_table
from mmoe.ops import extension_status

KEYS = (*TARGETS, *BESIDE)
RACES = (
    *line_races.RACES,
    *layer_races.RACES,
    *text_races.RACES,
    *picture_races.RACES,
    # Last: compilers leave threads and memory behind
    *equal_races.RACES,
)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    console = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    clock = Clock(device="cpu", rounds=arguments.rounds, seconds=arguments.seconds, say=say)
    bench = Bench(clock=clock, seeds=arguments.seeds, workers=arguments.threads)
    results, failed, skipped = run_races(RACES, bench, arguments.only or KEYS, say)
    results = in_order(results, TARGETS)
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    enough = enough and arguments.seeds >= FEWEST_SEEDS
    context = {
        "device": processor(),
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convert")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--rounds", type=int, help="of every race; default: as many as fit into --seconds"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of a race")
    parser.add_argument("--seeds", type=int, default=FEWEST_SEEDS, help="of compared trainings")
    parser.add_argument("--only", nargs="+", choices=KEYS, metavar="KEY")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
