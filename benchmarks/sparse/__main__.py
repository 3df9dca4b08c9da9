"""Dense against sparse at equal time; prints a table and, last, one JSON line."""

from pathlib import Path

from benchmarks.racing.harness import clock_of, keys_of, options, run
from benchmarks.sparse import onward, quality, router

FEWEST_SEEDS = 3
RACES = (*quality.RACES, *onward.RACES, *router.RACES)


def main() -> None:
    parser = options("sparse", keys_of(RACES), seconds=10.0, rounds=True, seeds=FEWEST_SEEDS)
    parser.add_argument("--rows", type=int, default=2_000_000, help="that one log trains on")
    parser.add_argument("--pictures", type=Path, help="folder for curves over time")
    arguments = parser.parse_args()
    bench = quality.Bench(clock_of(arguments), arguments.seeds, arguments.rows, arguments.pictures)
    settings = {"seeds": arguments.seeds, "rows": arguments.rows}
    run(arguments, RACES, bench, settings=settings, fewest_seeds=FEWEST_SEEDS)


if __name__ == "__main__":
    main()
