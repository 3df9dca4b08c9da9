"""Races sharing against going without it, prints a table and, last, one JSON line.

python -m benchmarks.sharing [--device cpu|cuda] [--threads N] [--rounds N] [--only KEY ...]
                             [--seconds S] [--seeds N] [--rows N] [--out FILE]
"""

from benchmarks.racing.harness import Clock, options, run
from benchmarks.sharing import step_races
from benchmarks.sharing.quality import (
    DOMAIN_QUALITY_RACES,
    EQUAL_TIME_KEYS,
    EQUAL_TIME_RACES,
    QUALITY_RACES,
)
from benchmarks.sharing.steps import DOMAIN_RACES, REQUEST_RACES, TARGETS, TASK_RACES, Bench

FEWEST_SEEDS = 10
RACES = (
    *step_races.RACES,
    *REQUEST_RACES,
    *TASK_RACES,
    *DOMAIN_RACES,
    *QUALITY_RACES,
    *EQUAL_TIME_RACES,
    *DOMAIN_QUALITY_RACES,
)


def main() -> None:
    parser = options("sharing", (*TARGETS, *EQUAL_TIME_KEYS), seeds=FEWEST_SEEDS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", type=int, default=40_000, help="of the logs of trainings")
    arguments = parser.parse_args()

    def bench(clock: Clock) -> Bench:
        return Bench(clock, arguments.seeds, arguments.rows)

    run(arguments, RACES, TARGETS, bench, fewest_seeds=FEWEST_SEEDS)


if __name__ == "__main__":
    main()
