"""Prints where a step's time goes."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.racing.results import Result
from mmoe.train.profiling import StepTimes, parts_text


def print_step_tables(results: Sequence[Result]) -> None:
    """One table of parts and one of operators for every result that has them."""
    for result in results:
        for detail in result.details:
            if "step_times" in detail:
                times = StepTimes.of(detail["step_times"])
                print(f"A step, {result.key}, while it is recorded\n{parts_text(times)}")
                print(f"{detail['page_faults']:,.0f} page faults a step\n")
                print_operators(f"A step, {result.key}: operators", times.operators)


def print_operators(title: str, operators: Sequence[Mapping[str, Any]]) -> None:
    """Those that took longest, ms and calls a step."""
    table = new_table(("operator", "ms", "calls"))
    for operator in operators:
        table.add_row(operator["name"][:90], f"{operator['ms']:.2f}", f"{operator['calls']:.0f}")
    print_under(title, table)


def print_under(title: str, table: Table) -> None:
    """The title may be longer than the table is wide."""
    print(title)
    Console(width=140, highlight=False).print(table)


def new_table(columns: Sequence[str]) -> Table:
    """The first column is text, the others are numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
