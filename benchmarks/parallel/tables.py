"""Prints what was sent, and where the time of a step over ranks goes."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.racing.results import Result
from benchmarks.train.step_tables import new_table, print_operators, print_under


def print_wire(results: Sequence[Result]) -> None:
    """A line for every case of `wire_bytes_over_bound`."""
    for result in results:
        if result.key == "wire_bytes_over_bound":
            columns = ("case", "wire", "rows", "picks", "pairs", "sums", "MB", "over bound")
            table = new_table((*columns, "per gate", "per pick"))
            for row in result.details:
                counts = (f"{row[key]:,}" for key in ("rows", "picks", "pairs", "sums"))
                ratios = (f"{row[key]:.2f}" for key in ("per_gate", "per_pick"))
                sent, over = f"{row['counted'] / 1e6:.2f}", f"{row['over_bound']:.4f}"
                table.add_row(row["case"], row["wire"], *counts, sent, over, *ratios)
            print_under(
                "Sent in a step by two ranks; times as much: a message per gate, a row per pick",
                table,
            )


def print_costs(results: Sequence[Result]) -> None:
    """Parts and collectives of every result that has them."""
    for result in results:
        for costs in result.details:
            if "collectives" in costs:
                _print_parts(result.key, costs)
                _print_collectives(result.key, costs)
                print_operators(f"A step, {result.key}: operators of rank 0", costs["operators"])


def _print_parts(key: str, costs: Mapping[str, Any]) -> None:
    numbers = range(len(costs["parts"][0]["ranks"]))
    table = new_table(("part", "one process", *(f"rank {rank}" for rank in numbers), "more"))

    def add(name: str, one: float, ranks: Sequence[float]) -> None:
        more = sum(ranks) / len(ranks) - one
        table.add_row(name, *(f"{ms:.2f}" for ms in (one, *ranks)), f"{more:+.2f}")

    for row in costs["parts"]:
        add(row["part"], row["one"], row["ranks"])
    table.add_section()
    rows = costs["parts"]
    add("step", sum(r["one"] for r in rows), [sum(r["ranks"][n] for r in rows) for n in numbers])
    add("products", costs["products"][0], costs["products"][1:])
    print_under(
        f"A step, {key}, ms while it is recorded; collectives count where they were waited for",
        table,
    )


def _print_collectives(key: str, costs: Mapping[str, Any]) -> None:
    table = new_table(("collectives", "calls", "MB", "waiting", "on the wire", "of the step"))
    whole = sum(costs["step_ms"]) / len(costs["step_ms"])
    for row in costs["collectives"]:
        share = (row["waiting"] + row["wire"]) / whole
        table.add_row(
            row["owner"],
            *(f"{row[k]:.{digits}f}" for k, digits in (("calls", 0), ("mb", 2))),
            *(f"{row[k]:.2f}" for k in ("waiting", "wire")),
            f"{share:.1%}",
        )
    print_under(f"A step, {key}: what a rank stands still for, ms (mean of ranks and steps)", table)
