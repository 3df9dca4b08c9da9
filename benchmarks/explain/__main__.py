"""What `mmoe explain` costs and how right it is; last, one JSON line.

python -m benchmarks.explain [--seconds N] [--rows N] [--threads N] [--out FILE]
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.explain.passes import largest_error, race_passes
from benchmarks.racing.harness import Clock, Race, Target, report, run_races, talker

TARGETS: Mapping[str, Target] = {
    "explain_passes": Target(0.5, at_most=True),
    "explain_error": Target(1e-6, at_most=True),
}
_ERROR_ROWS = 10_000


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    started, say = time.perf_counter(), talker()
    clock = Clock(device="cpu", rounds=None, seconds=arguments.seconds, say=say)
    races: list[Race[Clock]] = [
        Race(("explain_passes",), lambda clock: race_passes(clock, arguments.rows)),
        Race(("explain_error",), lambda _: [largest_error(min(arguments.rows, _ERROR_ROWS))]),
    ]
    found = run_races(races, clock, arguments.only or tuple(TARGETS), say)
    title = "Explanations: median and 10–90 % range"
    report(found, TARGETS, {}, arguments.out, started=started, title=title)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explain")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the race")
    parser.add_argument("--rows", type=int, default=40_000, help="that are predicted in it")
    parser.add_argument("--only", nargs="+", choices=TARGETS, metavar="KEY")
    parser.add_argument("--threads", type=int, help="of PyTorch; default: as many as cores")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    arguments = parser.parse_args()
    if arguments.rows < 1:
        parser.error(f"--rows is {arguments.rows}, expected 1+")
    return arguments


if __name__ == "__main__":
    main()
