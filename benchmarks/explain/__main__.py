"""What `mmoe explain` costs, how right it is, what its affinity predicts; last, one JSON line.

python -m benchmarks.explain [--seconds N] [--rows N] [--seeds N] [--threads N] [--out FILE]
"""

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.explain.affinity import rank_correlation
from benchmarks.explain.passes import largest_error, race_passes
from benchmarks.racing.clock import Clock
from benchmarks.racing.last_line import print_json
from benchmarks.racing.machine import processor
from benchmarks.racing.races import Race, run_races
from benchmarks.racing.results import Result, Target, missed, print_table
from benchmarks.racing.times import Spread
from mmoe.ops import extension_status

# The last key has no target: `mmoe/report/explanation.py` calls the table a hint below 0.6
TARGETS: Mapping[str, Target] = {
    "explain_passes": Target(0.5, at_most=True),
    "explain_error": Target(1e-6, at_most=True),
}
KEYS = (*TARGETS, "affinity_rank_correlation")
_FEWEST_SEEDS, _ERROR_ROWS = 3, 10_000


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    console = Console(stderr=True, highlight=False)
    say = partial(console.print, markup=False)
    started = time.perf_counter()
    clock = Clock(device="cpu", rounds=None, seconds=arguments.seconds, say=say)
    races: list[Race[Clock]] = [
        Race(("explain_passes",), lambda clock: race_passes(clock, arguments.rows)),
        Race(("explain_error",), lambda _: [largest_error(min(arguments.rows, _ERROR_ROWS))]),
        Race(
            ("affinity_rank_correlation",),
            lambda _: [_affinity(arguments.task_rows, arguments.seeds, clock)],
        ),
    ]
    results, failed, _ = run_races(races, clock, arguments.only or KEYS, say)
    print_table(results, TARGETS, "Explanations: median and 10–90 % range")
    context = {
        "device": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "seeds": arguments.seeds,
        "seconds": round(time.perf_counter() - started),
    }
    print(f"{context['seconds']} s; missed: {', '.join(missed(results, TARGETS)) or 'none'}")
    print_json(results, TARGETS, failed, context, arguments.out)
    if failed:
        sys.exit(1)


def _affinity(rows: int, seeds: int, clock: Clock) -> Result:
    found = rank_correlation(rows, seeds, lambda text: clock.say(f"  {text}"))
    by_seed = found["by_seed"]
    note = f"{len(found['tasks'])} tasks, {rows:,} rows; of the cosine {found['cosine']:.2f}"
    return Result(
        key="affinity_rank_correlation",
        spread=Spread(found["affinity"], min(by_seed), max(by_seed), seeds),
        note=note,
        details=[found],
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explain")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the race")
    parser.add_argument("--rows", type=int, default=40_000, help="that are predicted in it")
    parser.add_argument(
        "--task-rows", type=int, default=40_000, help="that the six tasks are trained on"
    )
    parser.add_argument("--seeds", type=int, default=_FEWEST_SEEDS, help="of the six tasks")
    parser.add_argument("--only", nargs="+", choices=KEYS, metavar="KEY")
    parser.add_argument("--threads", type=int, help="of PyTorch; default: as many as cores")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    arguments = parser.parse_args()
    for name in ("rows", "task_rows", "seeds"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(arguments, name)}, expected 1+")
    return arguments


if __name__ == "__main__":
    main()
