"""Scoring on Ray and on Spark, in an environment that has them."""

import json
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.racing.races import NothingToMeasure, Race
from benchmarks.racing.ranks import ROOT, with_modules_of
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from benchmarks.score.bench import Answer, Bench
from benchmarks.score.child import ask_child, run_child
from benchmarks.score.spark_log import config_of_size, write_spread_log
from benchmarks.train.workloads import BATCH

MOST_ROUNDS = 2
PRECISION = "bf16"
PARTS = 64  # of the many rows, about: workers are busy until the end
WORKERS = 2
SLOTS = (1, 4)
# Of the many rows: enough to touch nearly every page of the large tables
SPARK_SHARE = 1 / 8


def ray(bench: Bench) -> list[Result]:
    """Two workers of one thread each over one process of two threads.

    A start is what the command takes over a part for each worker: processes, imports, the model
    and, on Ray, the cluster. It is taken off the times of both.
    """
    check_there(bench.engines, "import ray, mmoe.integrations.ray_engine")
    few, many = bench.log(WORKERS * BATCH), bench.log(bench.many)
    piece = max(BATCH, bench.many // PARTS)
    calls: dict[str, Callable[[], Answer]] = {}
    for name, log, rows in (("few", few, BATCH), ("many", many, piece)):
        for engine in ("local", "ray"):
            calls[f"{engine} {name}"] = partial(_command, bench, engine, log.train, rows, log.rows)
    calls["ray few"]()  # not counted: what it imports is read from the disk
    answers = bench.in_turns(calls, min(bench.repeats, MOST_ROUNDS))
    return overheads({name: [a["whole"] for a in of] for name, of in answers.items()})


def overheads(whole: Mapping[str, Sequence[float]]) -> list[Result]:
    """Of the seconds of whole commands: with starts (their medians) taken off, and as they are.

    Raises:
        RuntimeError: A start takes longer than the many rows do after it: by how much starts differ
            would decide.
    """
    start = {who: statistics.median(whole[f"{who} few"]) for who in ("ray", "local")}
    rounds = list(zip(whole["ray many"], whole["local many"], strict=True))
    left = [(ray - start["ray"], local - start["local"]) for ray, local in rounds]
    if any(ray < start["ray"] or local < start["local"] for ray, local in left):
        raise RuntimeError("starts take longer than all rows: say a larger --many")
    total = {who: statistics.median(whole[f"{who} many"]) for who in ("ray", "local")}
    return [
        Result(
            key="ray_overhead",
            spread=Spread.of([ray / local for ray, local in left]),
            note=f"start: {start['ray']:.1f} s on Ray, {start['local']:.1f} s without",
        ),
        Result(
            key="ray_overhead_with_start",
            spread=Spread.of([ray / local for ray, local in rounds]),
            note=f"{total['ray']:.1f} over {total['local']:.1f} s",
        ),
    ]


def spark(bench: Bench) -> list[Result]:
    """Memory of the Python workers of four slots over that of one: do they share the tables?"""
    check_there(bench.engines, "import pyspark; from mmoe.integrations.spark import score")
    rows = round(bench.many * SPARK_SHARE)
    log = write_spread_log(bench.folder, rows)
    bench.say(f"  training a run of {bench.table_bytes / 2**30:.2f} GiB of tables")
    run = bench.train(config_of_size(bench.config("fp32"), bench.table_bytes))
    answers = [_spark(bench, run, log, slots) for slots in SLOTS]
    bench.remove(run)
    return [memory(answers)]


def memory(answers: Sequence[Mapping[str, Any]]) -> Result:
    """The ratio of the peaks; one slot first.

    Raises:
        RuntimeError: Slots had nothing to do.
    """
    for slots, answer in zip(SLOTS, answers, strict=True):
        if answer["workers"] < slots:
            raise RuntimeError(f"{answer['workers']} of {slots} slots had a worker")
    one, all_of_them = (answer["peak"] for answer in answers)
    ratio = all_of_them / one
    return Result(
        key="spark_rss_ratio",
        spread=Spread(ratio, ratio, ratio, 1),
        note=f"{all_of_them / 2**30:.2f} over {one / 2**30:.2f} GiB",
        details=[{**answer, "peak": answer["peak"] / 2**30} for answer in answers],
    )


def check_there(python: Path, code: str) -> None:
    """Can an interpreter do it, with the sources that are measured?

    Raises:
        NothingToMeasure: There is none, or it says why not.
    """
    if not python.exists():
        raise NothingToMeasure(f"{python} is not there; --engines names one with Ray and PySpark")
    tried = subprocess.run(
        [str(python), "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tried.returncode:
        words = tried.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise NothingToMeasure(f"{python}: {words[0]}")


def _command(bench: Bench, engine: str, source: Path, piece: int, rows: int) -> Answer:
    """`mmoe score` into a folder; its seconds from start to end."""
    output = bench.new()
    paths = [str(bench.trained(PRECISION)), "--input", str(source), "--output", str(output)]
    command = [str(bench.engines), "-m", "mmoe", "score", *paths]
    command += ["--rows-per-file", str(piece), "--quiet"]
    if engine == "ray":
        command += ["--engine", "ray", "--workers", str(WORKERS)]
    threads = 1 if engine == "ray" else WORKERS
    own = {**with_modules_of(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    _, whole = run_child(command, threads=threads, cwd=ROOT, variables=own)
    bench.remove(output)
    return {"whole": whole, "seconds": whole, "rows": rows}


def _spark(bench: Bench, run: Path, log: Path, slots: int) -> dict[str, Any]:
    asked = {"run": str(run), "source": str(log), "slots": slots, "room": str(bench.new())}
    bench.say(f"  Spark with {slots} slots")
    return ask_child(
        [str(bench.engines), "-m", "benchmarks.score.spark_program", json.dumps(asked)],
        threads=1,
        cwd=ROOT,
        variables={**with_modules_of(ROOT), "PYSPARK_PYTHON": str(bench.engines)},
    )


ENGINE_RACES = (Race(("ray_overhead",), ray), Race(("spark_rss_ratio",), spark))
