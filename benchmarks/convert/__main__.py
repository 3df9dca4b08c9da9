"""Converts networks, compares them with the dense ones, prints a table and, last, one JSON line.

python -m benchmarks.convert [--threads N] [--rounds N] [--only KEY ...] [--seconds S]
                             [--seeds N] [--out FILE]
"""

from benchmarks.convert.races import (
    BESIDE,
    EQUAL_RACES,
    FEWEST_SEEDS,
    LINE_RACES,
    PICTURE_RACES,
    RACES,
    TARGETS,
    TEXT_RACES,
    Bench,
)
from benchmarks.racing.harness import Clock, options, run

KEYS = (*TARGETS, *BESIDE)
RACES = (
    *LINE_RACES,
    *RACES,
    *TEXT_RACES,
    *PICTURE_RACES,
    # Last: compilers leave threads and memory behind
    *EQUAL_RACES,
)


def main() -> None:
    arguments = options("convert", KEYS, seeds=FEWEST_SEEDS).parse_args()

    def bench(clock: Clock) -> Bench:
        return Bench(clock=clock, seeds=arguments.seeds, workers=arguments.threads)

    run(arguments, RACES, TARGETS, bench, fewest_seeds=FEWEST_SEEDS)


if __name__ == "__main__":
    main()
