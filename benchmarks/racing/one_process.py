"""What programs that race in one process share: options, races, the table, the last line."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console

from benchmarks.racing.clock import FEWEST_ROUNDS, Clock
from benchmarks.racing.last_line import print_json
from benchmarks.racing.machine import processor
from benchmarks.racing.races import Race, run_races
from benchmarks.racing.results import Target, in_order, print_table
from mmoe.ops import extension_status

Bench = TypeVar("Bench")


def options(name: str, keys: Sequence[str], *, seeds: int) -> argparse.ArgumentParser:
    """Those that all have; a program adds its own.

    Args:
        name: Of the package.
        keys: That may be asked for.
        seeds: Unless told otherwise.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.set_defaults(device="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--rounds", type=int, help="of every race; default: as many as fit into --seconds"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of a race")
    parser.add_argument("--seeds", type=int, default=seeds, help="of compared trainings")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="KEY")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser


def run(
    arguments: argparse.Namespace,
    races: Sequence[Race[Bench]],
    targets: Mapping[str, Target],
    bench: Callable[[Clock], Bench],
    *,
    fewest_seeds: int,
) -> None:
    """Prints a table and, last, one JSON line; exits with 1 where a race failed.

    Args:
        arguments: Of `options`.
        races: In turn.
        targets: Of the keys that have one.
        bench: What each race gets, made of the clock.
        fewest_seeds: With fewer of them medians are not held against targets.
    """
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    console = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    cuda = arguments.device == "cuda"
    clock = Clock(
        device=arguments.device, rounds=arguments.rounds, seconds=arguments.seconds, say=say
    )
    results, failed, skipped = run_races(races, bench(clock), arguments.only, say)
    results = in_order(results, targets)
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    enough = enough and arguments.seeds >= fewest_seeds
    context = {
        "device": torch.cuda.get_device_name() if cuda else processor(),
        "threads": arguments.threads,
        "seeds": arguments.seeds,
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "seconds": round(time.perf_counter() - started),
        **({"skipped": skipped} if skipped else {}),
    }
    print_table(results, targets, enough_rounds=enough)
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print_json(results, targets, failed, context, arguments.out, enough_rounds=enough)
    if failed:
        sys.exit(1)
