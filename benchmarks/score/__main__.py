"""Races scoring against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.score [--only KEY ...] [--rows N] [--many N] [--repeats N] [--threads N]
                           [--folder DIR] [--engines PYTHON] [--table-gib GIB] [--out FILE]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.racing.harness import (
    ProductRates,
    Result,
    keys_of,
    new_table,
    options,
    run,
    show,
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


def print_details(results: Sequence[Result]) -> None:
    """A table of what stands behind each key, in seconds where nothing else is said."""
    for result in results:
        if result.details:
            table = new_table(list(result.details[0]))
            for row in result.details:
                table.add_row(*map(_shown, row.values()))
            show(result.key, table)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
