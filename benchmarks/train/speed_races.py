"""Our training speed beside plain torch, and as a share of what the machine's products reach."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.racing.onednn import onednn_is_exact
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread, Times
from benchmarks.train.bench import Bench
from benchmarks.train.processes import Contestant
from benchmarks.train.workloads import BATCH, BIG_FLOPS_PER_ROW

PARTS_STEPS = 20
# What the profiler found goes into the details of this key, by precision
PROFILED = "gemm_share_train_big"


def big_bf16(bench: Bench) -> list[Result]:
    """The headline: `big` in bf16, and ours on small tables."""
    specs = {
        "mmoe": bench.spec("mmoe", "big", "bf16"),
        "plain torch": bench.spec("plain", "big", "bf16"),
        "mmoe small": bench.spec("mmoe", "small", "bf16"),
    }
    found: list[Mapping[str, Any]] = []
    times = bench.race(specs, after=partial(_profile, found))
    return [
        replace(_share(times, "bf16"), details=found),
        _versus("vs_plain_torch_big_bf16", times, "plain torch"),
        replace(
            _versus("big_over_small", times, "mmoe small"), note="bf16; other: ours on small tables"
        ),
    ]


def big_fp32(bench: Bench) -> list[Result]:
    """`big` in fp32; the rival also with its products through oneDNN."""
    specs = {
        "mmoe": bench.spec("mmoe", "big", "fp32"),
        "plain torch": bench.spec("plain", "big", "fp32"),
    }
    if onednn_is_exact("cpu"):
        specs["oneDNN"] = bench.spec("plain", "big", "fp32", onednn=True)
    found: list[Mapping[str, Any]] = []
    times = bench.race(specs, after=partial(_profile, found))
    results = [
        replace(_share(times, "fp32"), details=found),
        _versus("vs_plain_torch_big_fp32", times, "plain torch"),
    ]
    if "oneDNN" in specs:
        results.append(_versus("vs_plain_torch_big_fp32_onednn", times, "oneDNN"))
    return results


def ranker(bench: Bench) -> list[Result]:
    """A wide log: lists, sequences, six tasks."""
    specs = {
        "mmoe": bench.spec("mmoe", "ranker", "bf16"),
        "plain torch": bench.spec("plain", "ranker", "bf16"),
    }
    return [_versus("vs_plain_torch_ranker_bf16", bench.race(specs), "plain torch")]


def rows_per_second(times: Times, name: str) -> float:
    """Of the median window."""
    return BATCH / times.median(name)


def _share(times: Times, precision: str) -> Result:
    """FLOP/s, still to be divided by the product rate."""
    spread = Spread.of([BATCH * BIG_FLOPS_PER_ROW / s for s in times.seconds["mmoe"]])
    ours_ms = times.median("mmoe") * 1e3
    return Result(
        key=f"{PROFILED}_{precision}",
        spread=spread,
        ours_ms=ours_ms,
        product_rate=precision,
        note=f"{rows_per_second(times, 'mmoe'):,.0f} rows/s",
    )


def _versus(key: str, times: Times, other: str) -> Result:
    ours, theirs = rows_per_second(times, "mmoe"), rows_per_second(times, other)
    return speedup(key, times, other, note=f"{ours:,.0f} against {theirs:,.0f} rows/s")


def _profile(found: list[Mapping[str, Any]], running: Mapping[str, Contestant]) -> None:
    found.append(running["mmoe"].ask("parts", steps=PARTS_STEPS))


SPEED_RACES = (
    Race(("gemm_share_train_big_bf16", "vs_plain_torch_big_bf16", "big_over_small"), big_bf16),
    Race(("gemm_share_train_big_fp32", "vs_plain_torch_big_fp32"), big_fp32),
    Race(("vs_plain_torch_ranker_bf16",), ranker),
)
