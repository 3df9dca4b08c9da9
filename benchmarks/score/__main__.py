"""Races scoring against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.score [--only KEY ...] [--rows N] [--many N] [--repeats N] [--threads N]
                           [--folder DIR] [--engines PYTHON] [--table-gib GIB] [--out FILE]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import mmoe  # noqa: F401 - first: it says how OpenMP waits, for this process and all it starts
from benchmarks.racing.harness import (
    ProductRates,
    Result,
    report,
    run_races,
    talker,
)
from benchmarks.racing.ranks import ROOT
from benchmarks.score.races import (
    ENGINE_RACES,
    FLOPS_PER_ROW,
    GROWTH_RACES,
    PEER_RACES,
    SPEED_RACES,
    TARGETS,
    Bench,
)

RACES = (*SPEED_RACES, *PEER_RACES, *GROWTH_RACES, *ENGINE_RACES)
ENGINES = ROOT / ".venv-engines" / "bin" / "python"
TITLE = "Paired ratios (ms: of 4,096 rows): median and 10–90 % range"


def main(given: Sequence[str] | None = None) -> None:
    """Prints tables and, last, one JSON line; exits with 1 where a race failed."""
    arguments = _parser().parse_args(given)
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    temporary = Path(tempfile.mkdtemp(prefix="mmoe-bench-score-"))
    wanted = arguments.only or list(TARGETS)
    bench = Bench(
        folder=(arguments.folder or temporary / "kept").resolve(),
        runs=temporary,
        rows=arguments.rows,
        many=arguments.many,
        repeats=arguments.repeats,
        threads=arguments.threads,
        engines=arguments.engines.absolute(),  # not resolved: a link leads out of its environment
        table_bytes=arguments.table_gib * 2**30,
        wanted=wanted,
        rates=ProductRates("cpu"),
        say=talker(),
    )
    bench.folder.mkdir(parents=True, exist_ok=True)
    try:
        results, failed, skipped = run_races(RACES, bench, wanted, bench.say)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    settings = {
        **{name: getattr(arguments, name) for name in ("rows", "many", "repeats")},
        "flops_per_row": round(FLOPS_PER_ROW),
        "counted": "shares and vs_…: from the first row read to the output complete; imports and "
        "loading of the model are in the details alone",
    }
    report(
        (results, failed, skipped | bench.skipped),
        TARGETS,
        settings,
        arguments.out,
        started=started,
        title=TITLE,
        rates=bench.rates,
        details=_print_details,
    )


def _print_details(results: Sequence[Result]) -> None:
    for result in results:
        if result.details:
            print_details(result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.score")
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), metavar="KEY")
    parser.add_argument("--rows", type=int, default=400_000, help="of big, that are scored")
    parser.add_argument(
        "--many", type=int, default=4_000_000, help="rows, for memory, cores and Ray"
    )
    parser.add_argument("--repeats", type=int, default=5, help="scorings of each contestant")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--folder", type=Path, help="logs, and the build of an earlier mmoe, stay there"
    )
    parser.add_argument(
        "--engines", type=Path, default=ENGINES, metavar="PYTHON", help="has Ray and PySpark"
    )
    parser.add_argument(
        "--table-gib", type=float, default=2.0, help="embedding tables, of spark_rss_ratio"
    )
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser


def print_details(result: Result) -> None:
    """A table of what stands behind a key, in seconds where nothing else is said."""
    columns = list(result.details[0])
    print(result.key)
    print("  " + "".join(f"{name:>{_width(name)}}" for name in columns))
    for row in result.details:
        cells = (f"{_shown(row[name]):>{_width(name)}}" for name in columns)
        print("  " + "".join(cells))


def _width(name: str) -> int:
    return 14 if name == "who" else max(10, len(name) + 2)


def _shown(value: Any) -> str:
    return (
        f"{value:.2f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


if __name__ == "__main__":
    main()
