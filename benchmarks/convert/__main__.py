"""Converts networks, compares them with the dense ones, prints a table and, last, one JSON line."""

from benchmarks.convert.races import FEWEST_SEEDS, RACES, Bench
from benchmarks.racing.harness import clock_of, keys_of, options, run


def main() -> None:
    keys = keys_of(RACES)
    options_ = options("convert", keys, seconds=60.0, rounds=True, seeds=FEWEST_SEEDS)
    arguments = options_.parse_args()
    seeds = arguments.seeds
    bench = Bench(clock=clock_of(arguments), seeds=seeds, workers=arguments.threads)
    run(arguments, RACES, bench, settings={"seeds": seeds}, fewest_seeds=FEWEST_SEEDS)


if __name__ == "__main__":
    main()
