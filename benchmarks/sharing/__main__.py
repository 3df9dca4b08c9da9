"""Races sharing against going without it, prints a table and, last, one JSON line.

python -m benchmarks.sharing [--device cpu|cuda] [--threads N] [--rounds N] [--only KEY ...]
                             [--seconds S] [--seeds N] [--rows N] [--out FILE]
"""

from benchmarks.racing.clock import Clock
from benchmarks.racing.one_process import options, run
from benchmarks.sharing import (
    domain_quality,
    domain_steps,
    equal_time,
    quality,
    request_races,
    step_races,
    task_races,
)
from benchmarks.sharing.bench import Bench
from benchmarks.sharing.targets import TARGETS

FEWEST_SEEDS = 10
RACES = (
    *step_races.RACES,
    *request_races.RACES,
    *task_races.RACES,
    *domain_steps.RACES,
    *quality.RACES,
    *equal_time.RACES,
    *domain_quality.RACES,
)


def main() -> None:
    parser = options("sharing", (*TARGETS, *equal_time.KEYS), seeds=FEWEST_SEEDS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", type=int, default=40_000, help="of the logs of trainings")
    arguments = parser.parse_args()

    def bench(clock: Clock) -> Bench:
        return Bench(clock, arguments.seeds, arguments.rows)

    run(arguments, RACES, TARGETS, bench, fewest_seeds=FEWEST_SEEDS)


if __name__ == "__main__":
    main()
