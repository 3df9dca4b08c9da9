"""What a benchmark ends with: one JSON line."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.racing.products import ProductRates
from benchmarks.racing.results import Result, Target, missed, print_table


def gflops(rates: ProductRates) -> dict[str, dict[str, float]]:
    """The best product rates by dtype and library, in GFLOP/s."""
    return {
        dtype: {library: round(rate / 1e9, 1) for library, rate in by_library.items()}
        for dtype, by_library in rates.best.items()
    }


def print_rates(rates: Mapping[str, Mapping[str, float]]) -> None:
    """Those of `gflops`."""
    for dtype, by_library in rates.items():
        if not by_library:
            continue  # nothing was raced
        shown = ", ".join(f"{library} {rate:,.0f}" for library, rate in by_library.items())
        print(f"best product, {dtype}: {shown} GFLOP/s")


def print_races(
    results: Sequence[Result],
    targets: Mapping[str, Target],
    title: str,
    skipped: Mapping[str, str],
    context: Mapping[str, Any],
) -> None:
    """What races found, for people: the table, what was left out, and where it was measured."""
    print_table(results, targets, title)
    for key, reason in skipped.items():
        print(f"skipped {key}: {reason}")
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print(f"mmoe.ops: {context['extension']}")
    print_rates(context["product_gflops"])
    names = ", ".join(missed(results, targets)) or "none"
    print(f"{context['seconds']} s; missed: {names}")


def shares_of(
    results: Sequence[Result], rates: ProductRates
) -> tuple[list[Result], dict[str, str]]:
    """FLOP/s as shares of the product rate of their precision.

    Returns:
        The results, and why keys have none: this machine has no such products.
    """
    shares, without = [], {}
    for result in results:
        limit = rates.limit(result.product_rate) if result.product_rate else None
        if result.product_rate and limit is None:
            without[result.key] = f"no {result.product_rate} products on this machine"
        else:
            shares.append(result if limit is None else result.as_share_of(limit))
    return shares, without


def print_json(
    results: Sequence[Result],
    targets: Mapping[str, Target],
    failed: Mapping[str, str],
    context: Mapping[str, Any],
    out: Path | None,
    *,
    enough_rounds: bool = True,
) -> None:
    """The keys first, then what stands behind them; into `out` as well."""
    content = {
        **{r.key: round(r.spread.median, max(4, r.digits)) for r in results},
        **context,
        "missed": missed(results, targets) if enough_rounds else None,
        "failed": dict(failed),
        "results": {r.key: r.as_json() for r in results},
    }
    line = json.dumps(content, ensure_ascii=False)
    if out:
        out.write_text(line + "\n", encoding="utf-8")
    print(line)
