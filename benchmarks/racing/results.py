"""Targets, results, and the table that sets one beside the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.racing.times import Spread, Times


@dataclass(frozen=True)
class Target:
    """What a key should reach: at least `bound`, or at most; with `highest`, a range."""

    bound: float
    at_most: bool = False
    highest: float | None = None

    def met(self, value: float) -> bool:
        """Is it reached?"""
        if self.highest is not None:
            return self.bound <= value <= self.highest
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        if self.highest is not None:
            return f"in [{self.bound:g}, {self.highest:g}]"
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table.

    Attributes:
        key: Of the targets; others are shown for information.
        spread: Median and range of the paired ratios.
        ours_ms: Median of ours.
        other_ms: Median of what it is compared with. None where there is no such time.
        note: What else is worth knowing.
        product_rate: `fp32` or `bf16` where the spread is in FLOP/s and still to be divided by the
            rate of a plain product, which is known at the end of the run.
        details: Rows of a table of its own.
        digits: Behind the point, in the table.
    """

    key: str
    spread: Spread
    ours_ms: float | None = None
    other_ms: float | None = None
    note: str = ""
    product_rate: str | None = None
    details: Sequence[Mapping[str, Any]] = ()
    digits: int = 3

    def as_share_of(self, limit: float) -> "Result":
        """A rate as a share of `limit` (FLOP/s)."""
        note = f"of {limit / 1e9:,.0f} GFLOP/s"
        note = f"{self.note}, {note}" if self.note else note
        return replace(self, spread=self.spread.times(1 / limit), note=note, product_rate=None)

    def as_json(self) -> dict[str, object]:
        """Everything but the key."""
        digits = max(6, self.digits)
        return {
            "median": round(self.spread.median, digits),
            "p10": round(self.spread.low, digits),
            "p90": round(self.spread.high, digits),
            "rounds": self.spread.count,
            "ours_ms": _rounded(self.ours_ms),
            "other_ms": _rounded(self.other_ms),
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


def in_order(results: Iterable[Result], targets: Mapping[str, Target]) -> list[Result]:
    """In the order of `targets`, each key followed by what is shown beside it."""
    keys = list(targets)

    def place(result: Result) -> int:
        owners = [i for i, key in enumerate(keys) if result.key.startswith(key)]
        return max(owners, default=len(keys))

    return sorted(results, key=lambda result: (place(result), len(result.key), result.key))


def missed(results: Iterable[Result], targets: Mapping[str, Target]) -> list[str]:
    """The keys whose median is not what it should be."""
    held = [result for result in results if result.key in targets]
    return [r.key for r in held if not targets[r.key].met(r.spread.median)]


def print_table(
    results: Sequence[Result],
    targets: Mapping[str, Target],
    title: str = "Paired ratios: median and 10–90 % range",
    *,
    enough_rounds: bool = True,
) -> None:
    """Targets beside what was measured; keys without a target are for information.

    Args:
        results: What was measured.
        targets: What it is held against.
        title: Above the table.
        enough_rounds: Whether the medians can be held against the targets at all.
    """
    below = set(missed(results, targets))
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    right = ("ours, ms", "other, ms", "median", "10–90 %", "target")
    for column in ("key", *right, "", "note"):
        justify = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=column != "note")
    for result in results:
        target = targets.get(result.key)
        spread, digits = result.spread, result.digits
        table.add_row(
            result.key if target else f"  {result.key}",
            *("" if ms is None else f"{ms:,.2f}" for ms in (result.ours_ms, result.other_ms)),
            f"{spread.median:.{digits}f}",
            f"{spread.low:.{digits}f}–{spread.high:.{digits}f}",
            str(target) if target else "",
            _verdict(result.key in below, enough_rounds) if target else "",
            result.note,
        )
    Console(width=140, highlight=False).print(table)


def _verdict(missed: bool, enough_rounds: bool) -> str:
    if not enough_rounds:
        return "too few rounds"
    return "MISSED" if missed else "met"


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)
