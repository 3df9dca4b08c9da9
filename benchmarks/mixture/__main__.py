"""Races our layer against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.mixture [--device cpu|cuda] [--threads N] [--rounds N] [--only KEY ...]
                             [--seconds S] [--out FILE]
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.mixture.races import (
    AUTO_RACES,
    DENSE_RACES,
    GATE_RACES,
    SPARSE_RACES,
    TARGETS,
    Bench,
    format_choices,
)
from benchmarks.racing.harness import (
    FEWEST_ROUNDS,
    Clock,
    ProductRates,
    Result,
    report,
    run_races,
    talker,
)

RACES = (*DENSE_RACES, *SPARSE_RACES, *GATE_RACES, *AUTO_RACES)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    started, device = time.perf_counter(), arguments.device
    clock = Clock(device=device, rounds=arguments.rounds, seconds=arguments.seconds, say=talker())
    bench = Bench(clock, ProductRates(device))
    found = run_races(RACES, bench, arguments.only or TARGETS, clock.say, bench.rates.measure)
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    report(
        found,
        TARGETS,
        {},
        arguments.out,
        started=started,
        rates=bench.rates,
        details=_print_choices,
        device=device,
        enough=enough,
    )


def _print_choices(results: Sequence[Result]) -> None:
    for result in results:
        if result.key == "auto_regret":
            print(format_choices(result.details))


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


if __name__ == "__main__":
    main()
