"""Targets, results, and the table that sets one beside the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.mixture.race import Spread, Times


@dataclass(frozen=True)
class Target:
    """What a key should reach: at least `bound`, or at most."""

    bound: float
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Is it reached?"""
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


TARGETS: Mapping[str, Target] = {
    "gemm_share_dense_bf16": Target(0.75),
    "gemm_share_dense_fp32": Target(0.70),
    "vs_loop_dense_bf16": Target(1.3),
    "vs_loop_dense_fp32": Target(2.0),
    "vs_grouped_mm_E8_fp32": Target(1.8),
    "vs_grouped_mm_E64_fp32": Target(1.8),
    "vs_grouped_mm_E256_fp32": Target(1.8),
    "vs_grouped_mm_E8_bf16": Target(1.15),
    "vs_grouped_mm_E64_bf16": Target(1.15),
    "vs_grouped_mm_E256_bf16": Target(1.15),
    "vs_naive_mask_E64": Target(30),
    "vs_naive_index_E256": Target(3),
    "vs_t_layers_independent": Target(1.25),
    "vs_t_layers_correlated": Target(2.5),
    "vs_merged_independent": Target(0.95),
    "vs_merged_correlated": Target(1.6),
    "vs_best_trained": Target(1.2),
    "vs_capacity_padded": Target(1.2),
    "planning_share": Target(0.15, at_most=True),
    "auto_regret": Target(1.15, at_most=True),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table.

    Attributes:
        key: Of the table in the head of `TARGETS`; others are shown for information.
        spread: Median and range of the paired ratios.
        ours_ms: Median of our layer.
        other_ms: Median of what it is compared with; None where there is no such time.
        note: What else is worth knowing.
        product_rate: `fp32` or `bf16` where the spread is in FLOP/s and still to be divided by the
            rate of a plain product, which is known at the end of the run.
        details: Rows of a table of its own.
    """

    key: str
    spread: Spread
    ours_ms: float
    other_ms: float | None = None
    note: str = ""
    product_rate: str | None = None
    details: Sequence[Mapping[str, Any]] = ()

    def as_share_of(self, limit: float) -> "Result":
        """A rate as a share of `limit` (FLOP/s)."""
        note = f"of {limit / 1e9:,.0f} GFLOP/s"
        return replace(self, spread=self.spread.times(1 / limit), note=note, product_rate=None)

    def as_json(self) -> dict[str, object]:
        """Everything but the key."""
        return {
            "median": round(self.spread.median, 4),
            "p10": round(self.spread.low, 4),
            "p90": round(self.spread.high, 4),
            "rounds": self.spread.count,
            "ours_ms": round(self.ours_ms, 3),
            "other_ms": None if self.other_ms is None else round(self.other_ms, 3),
            "note": self.note,
            **({"details": list(self.details)} if self.details else {}),
        }


def speedup(key: str, times: Times, other: str, ours: str = "mmoe", note: str = "") -> Result:
    """How many times as long the other one takes."""
    return Result(
        key=key,
        spread=times.ratio(other, ours),
        ours_ms=times.median(ours) * 1e3,
        other_ms=times.median(other) * 1e3,
        note=note,
    )


def in_order(results: Iterable[Result]) -> list[Result]:
    """In the order of `TARGETS`, each key followed by what is shown beside it."""
    keys = list(TARGETS)

    def place(result: Result) -> int:
        owners = [i for i, key in enumerate(keys) if result.key.startswith(key)]
        return max(owners, default=len(keys))

    return sorted(results, key=lambda result: (place(result), len(result.key), result.key))


def missed(results: Iterable[Result]) -> list[str]:
    """The keys whose targets are not reached."""
    return [r.key for r in results if r.key in TARGETS and not TARGETS[r.key].met(r.spread.median)]


def print_table(results: Sequence[Result], *, enough_rounds: bool = True) -> None:
    """Targets beside what was measured; keys without a target are for information.

    Args:
        results: What was measured.
        enough_rounds: Whether the medians can be held against the targets.
    """
    below = set(missed(results))
    title = "Paired ratios: median and 10–90 % range"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    right = ("ours, ms", "other, ms", "median", "10–90 %", "target")
    for column in ("key", *right, "", "note"):
        justify = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=column != "note")
    for result in results:
        target = TARGETS.get(result.key)
        spread, other = result.spread, result.other_ms
        table.add_row(
            result.key if target else f"  {result.key}",
            f"{result.ours_ms:.2f}",
            "" if other is None else f"{other:.2f}",
            f"{spread.median:.3f}",
            f"{spread.low:.3f}–{spread.high:.3f}",
            str(target) if target else "",
            _verdict(result.key in below, enough_rounds) if target else "",
            result.note,
        )
    Console(width=140, highlight=False).print(table)


def _verdict(missed: bool, enough_rounds: bool) -> str:
    if not enough_rounds:
        return "too few rounds"
    return "MISSED" if missed else "met"
