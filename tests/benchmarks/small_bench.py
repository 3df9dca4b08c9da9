"""The `Bench` of whole steps, for races that only show that they run."""

from pathlib import Path

from benchmarks.racing.harness import ProductRates
from benchmarks.train.races import Bench


def small_bench(folder: Path, rows: int) -> Bench:
    """One thread, one seed, as few rounds as there can be; says nothing.

    Args:
        folder: For logs and runs.
        rows: Of `big`.
    """
    return Bench(
        folder=folder / "logs",
        runs=folder,
        rows=rows,
        seconds=0.0,
        seeds=1,
        threads=1,
        overrides=(),
        rates=ProductRates("cpu"),
        say=lambda _: None,
    )
