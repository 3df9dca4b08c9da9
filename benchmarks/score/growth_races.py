"""What more rows cost in memory, and what a second core gives."""

import os
from functools import partial

from benchmarks.racing.races import NothingToMeasure, Race
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread
from benchmarks.score.bench import Bench, times_of
from benchmarks.score.speed_races import share

# A scoring of many rows takes as long as ten of few; of memory a run in four took a tenth more
MOST_OF_MANY, MOST_OF_ONE_CORE = 3, 3
# Of `many`, for the race of cores: a last chunk without company weighs less than in `rows`
CORES_FILES = "part-00[01].parquet"
PRECISION = "bf16"


def peaks(bench: Bench) -> list[Result]:
    """Peak resident memory over many rows and over few; speed over many beside it."""
    calls = {
        name: partial(bench.score, PRECISION, bench.log(rows).train)
        for name, rows in (("few", bench.rows), ("many", bench.many))
    }
    answers = bench.in_turns(calls, min(bench.repeats, MOST_OF_MANY))
    pairs = list(zip(answers["many"], answers["few"], strict=True))
    large, small = (max(a["peak"] for a in answers[name]) / 2**30 for name in ("many", "few"))
    return [
        Result(
            key="peak_rss_ratio",
            spread=Spread.of([many["peak"] / few["peak"] for many, few in pairs]),
            note=f"{large:.2f} over {small:.2f} GiB",
        ),
        share(
            f"gemm_share_score_{PRECISION}_many",
            PRECISION,
            answers["many"],
            note=f"over {bench.many:,} rows",
        ),
    ]


def cores(bench: Bench) -> list[Result]:
    """A process of two threads on two cores, and one of one thread on one of them."""
    there = sorted(os.sched_getaffinity(0))
    if len(there) < 2:
        raise NothingToMeasure("this process has one core")
    source = bench.log(bench.many).train / CORES_FILES
    calls = {
        f"{count} cores": partial(
            bench.score, PRECISION, source, threads=count, cores=there[:count]
        )
        for count in (2, 1)
    }
    answers = bench.in_turns(calls, min(bench.repeats, MOST_OF_ONE_CORE))
    rows = answers["2 cores"][0]["rows"]
    note = f"{rows:,} rows, {PRECISION}; other: one core"
    return [speedup("cores_gain", times_of(answers), "1 cores", "2 cores", note=note)]


GROWTH_RACES = (Race(("peak_rss_ratio",), peaks), Race(("cores_gain",), cores))
