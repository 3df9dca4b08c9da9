"""Races scoring against the alternatives, prints a table and, last, one JSON line."""

from pathlib import Path

from benchmarks.racing.harness import (
    ProductRates,
    keys_of,
    options,
    print_details,
    run,
    talker,
    temporary_folder,
)
from benchmarks.racing.ranks import ROOT
from benchmarks.score.races import FLOPS_PER_ROW, RACES, Bench

ENGINES = ROOT / ".venv-engines" / "bin" / "python"
COUNTED = (
    "shares and vs_…: from the first row read to the output complete; imports and loading of the "
    "model are in the details alone"
)


def main() -> None:
    parser = options("score", keys_of(RACES))
    add = parser.add_argument
    add("--rows", type=int, default=400_000, help="of big, that are scored")
    add("--many", type=int, default=4_000_000, help="rows, for memory, cores and Ray")
    add("--repeats", type=int, default=5, help="scorings of each contestant")
    add("--folder", type=Path, help="logs, and the build of an earlier mmoe, stay there")
    add("--engines", type=Path, default=ENGINES, metavar="PYTHON", help="has Ray and PySpark")
    add("--table-gib", type=float, default=2.0, help="embedding tables, of spark_rss_ratio")
    arguments = parser.parse_args()
    with temporary_folder("score") as temporary:
        bench = Bench(
            folder=(arguments.folder or temporary / "kept").resolve(),
            runs=temporary,
            rows=arguments.rows,
            many=arguments.many,
            repeats=arguments.repeats,
            threads=arguments.threads,
            engines=arguments.engines.absolute(),  # a link leads out of its environment
            table_bytes=arguments.table_gib * 2**30,
            wanted=arguments.only,
            rates=ProductRates("cpu"),
            say=talker(),
        )
        bench.folder.mkdir(parents=True, exist_ok=True)
        told = {name: getattr(bench, name) for name in ("rows", "many", "repeats")}
        run(
            arguments,
            RACES,
            bench,
            settings={**told, "flops_per_row": round(FLOPS_PER_ROW), "counted": COUNTED},
            skipped=bench.skipped,
            title="Paired ratios (ms: of 4,096 rows): median and 10–90 % range",
            rates=bench.rates,
            details=print_details,
        )


if __name__ == "__main__":
    main()
