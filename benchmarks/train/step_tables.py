"""Prints where a step's time goes."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.racing.results import Result

# As `step_parts` calls them, which imports torch
WAYS, PROCESSOR = ("forward", "backward"), "processor"


def print_step_tables(results: Sequence[Result]) -> None:
    """One table of parts and one of operators for every result that has them."""
    for result in results:
        for detail in result.details:
            if "parts" in detail:
                _print_parts(f"A step, {result.key}: milliseconds", detail["parts"])
                print(f"{detail['page_faults']:,.0f} page faults a step\n")
            if "operators" in detail:
                _print_operators(f"A step, {result.key}: operators", detail["operators"])


def _print_parts(title: str, parts: Mapping[str, float]) -> None:
    table = _table(title, ("part", *WAYS, "both", "share", "processor"))
    total = sum(ms for key, ms in parts.items() if not key.endswith(PROCESSOR))
    for name in dict.fromkeys(key.split("|")[0] for key in parts):
        spent = [parts.get(f"{name}|{way}", 0.0) for way in WAYS]
        cells = (f"{ms:.2f}" if ms else "" for ms in (*spent, sum(spent)))
        busy = parts.get(f"{name}|{PROCESSOR}", 0.0)
        table.add_row(name, *cells, f"{sum(spent) / total:.0%}", f"{busy:.2f}")
    busy = sum(ms for key, ms in parts.items() if key.endswith(PROCESSOR))
    table.add_row("in all", "", "", f"{total:.2f}", "", f"{busy:.2f}")
    Console(width=140, highlight=False).print(table)


def _print_operators(title: str, operators: Sequence[Mapping[str, Any]]) -> None:
    table = _table(title, ("operator", "ms", "calls"))
    for operator in operators:
        table.add_row(operator["name"][:90], f"{operator['ms']:.2f}", f"{operator['calls']:.0f}")
    Console(width=140, highlight=False).print(table)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
