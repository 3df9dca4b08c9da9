"""Converts networks, compares them with the dense ones, prints a table and, last, one JSON line.

python -m benchmarks.convert [--threads N] [--rounds N] [--only KEY ...] [--seconds S]
                             [--seeds N] [--out FILE]
"""

from benchmarks.convert import (
    equal_races,
    layer_races,
    line_races,
    picture_races,
    text_races,
)
from benchmarks.convert.bench import FEWEST_SEEDS, Bench
from benchmarks.convert.targets import BESIDE, TARGETS
from benchmarks.racing.clock import Clock
from benchmarks.racing.one_process import options, run

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
    arguments = options("convert", KEYS, seeds=FEWEST_SEEDS).parse_args()

    def bench(clock: Clock) -> Bench:
        return Bench(clock=clock, seeds=arguments.seeds, workers=arguments.threads)

    run(arguments, RACES, TARGETS, bench, fewest_seeds=FEWEST_SEEDS)


if __name__ == "__main__":
    main()
