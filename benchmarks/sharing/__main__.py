"""Races sharing against going without it, prints a table and, last, one JSON line."""

from benchmarks.racing.harness import clock_of, keys_of, options, run
from benchmarks.sharing import quality, steps

FEWEST_SEEDS = 10
RACES = (*steps.RACES, *quality.RACES)


def main() -> None:
    parser = options(
        "sharing", keys_of(RACES), seconds=60.0, rounds=True, seeds=FEWEST_SEEDS, device=True
    )
    parser.add_argument("--rows", type=int, default=40_000, help="of the logs of trainings")
    arguments = parser.parse_args()
    bench = steps.Bench(clock_of(arguments), arguments.seeds, arguments.rows)
    settings = {"seeds": arguments.seeds}
    run(arguments, RACES, bench, settings=settings, fewest_seeds=FEWEST_SEEDS)


if __name__ == "__main__":
    main()
