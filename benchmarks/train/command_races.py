"""The command line: how soon it answers, and how much memory it takes."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.racing.races import Race
from benchmarks.racing.ranks import ROOT, environment
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from benchmarks.train.bench import Bench
from benchmarks.train.configs import raw_config
from benchmarks.train.ours import with_overrides

STARTS, HELPS = 5, 15
# The larger data set, in rows of the smaller one
LARGER = 10
STREAM_PRECISION = "bf16"
# What turns on input whose memory does not grow with the data
STREAM = ("data.input=stream",)
MODULE = {"train": "benchmarks.train.first_step", "help": "mmoe"}


def startup(bench: Bench, workload: str = "big") -> list[Result]:
    """`mmoe train` until its first step, after a run that warmed the caches."""
    log = bench.log(workload)
    config = _write_config(bench, raw_config(log, precision="bf16"), bench.overrides)
    seconds = []
    for _ in range(1 + STARTS):
        out = bench.empty_folder()
        seconds.append(_seconds(bench, ["train", str(config), "--out", str(out)], MODULE["train"]))
        shutil.rmtree(out, ignore_errors=True)
    return [_in_seconds("startup_seconds", seconds[1:], f"{log.rows:,} rows to read; warm")]


def help_text(bench: Bench) -> list[Result]:
    """`mmoe --help`."""
    seconds = [_seconds(bench, ["--help"], MODULE["help"]) for _ in range(1 + HELPS)]
    return [_in_seconds("help_seconds", seconds[1:], "warm")]


def streaming_memory(bench: Bench, workload: str = "big") -> list[Result]:
    """Peak memory of one epoch of `mmoe train` over ten times the rows."""
    overrides = (*STREAM, *bench.overrides)
    peaks = {}
    for rows in (bench.rows, LARGER * bench.rows):
        raw = raw_config(bench.log(workload, rows), precision=STREAM_PRECISION, epochs=1)
        out = bench.empty_folder()
        config = _write_config(bench, raw, overrides)
        peaks[rows] = _peak_bytes(bench, ["train", str(config), "--out", str(out), "--quiet"])
        bench.say(f"  {rows:,} rows: {peaks[rows] / 2**30:.2f} GiB")
        shutil.rmtree(out, ignore_errors=True)
    small, large = peaks.values()
    ratio = large / small
    note = f"{large / 2**30:.2f} over {small / 2**30:.2f} GiB"
    return [Result(key="peak_rss_ratio_stream", spread=Spread(ratio, ratio, ratio, 1), note=note)]


def _write_config(bench: Bench, raw: Mapping[str, Any], overrides: Sequence[str]) -> Path:
    """As a file; JSON is YAML."""
    path = bench.empty_folder().with_suffix(".yaml")
    checked = with_overrides(dict(raw), tuple(overrides)).model_dump(mode="json")
    path.write_text(json.dumps(checked), encoding="utf-8")
    return path


def _seconds(bench: Bench, arguments: Sequence[str], module: str) -> float:
    started = time.perf_counter()
    _run(bench, [sys.executable, "-m", module, *arguments])
    return time.perf_counter() - started


def _peak_bytes(bench: Bench, arguments: Sequence[str]) -> int:
    # A new process begins with the peak of the one that started it: here one that did nothing else
    command = [sys.executable, "-c", _WATCH, sys.executable, "-m", MODULE["help"], *arguments]
    return int(_run(bench, command)) * 1024  # Linux counts in KiB


_WATCH = """
import resource, subprocess, sys

code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def _run(bench: Bench, command: Sequence[str]) -> str:
    """Runs a command to its end; what it printed.

    Raises:
        RuntimeError: It failed; the message ends with its last words.
    """
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(bench.threads),
        check=False,
    )
    if finished.returncode:
        words = finished.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise RuntimeError(f"{' '.join(command)} failed: {words[0]}")
    return finished.stdout


def _in_seconds(key: str, seconds: Sequence[float], note: str) -> Result:
    spread = Spread.of(seconds)
    return Result(key=key, spread=spread, ours_ms=spread.median * 1e3, note=note)


COMMAND_RACES = (
    Race(("peak_rss_ratio_stream",), streaming_memory),
    Race(("startup_seconds",), startup),
    Race(("help_seconds",), help_text),
)
