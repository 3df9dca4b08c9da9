"""Metrics as tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mmoe.metrics.columns import NAMED_COLUMNS, Column
from mmoe.metrics.task_kinds import KINDS

_MOST_DOMAINS = 8  # a task; metrics.json has all


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Makes a table without lines, its first column at the left."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _columns() -> dict[str, Column]:
    """Columns of all kinds of tasks there are by now, by key: metrics, then counts of rows."""
    found = {column.key: column for kind in KINDS.values() for column in kind.columns}
    found |= NAMED_COLUMNS
    shown = [column for column in found.values() if column.title]
    return {column.key: column for column in sorted(shown, key=lambda column: column.is_count)}


def metrics_table(metrics: Mapping[str, Any], title: str = "test split") -> Table:
    """Makes a table of metrics, a line a task; `best` is the AUC of the true probabilities.

    Below a task stand the domains with the most rows, where there are domains.

    Args:
        metrics: What metrics.json holds.
        title: Which rows they were measured on.
    """
    names = _with_values(list(_columns()), list(metrics["tasks"].values()))
    # Twelve columns have to fit into a terminal of 100
    table = Table(
        title=Text(title, no_wrap=True, overflow="ignore"),
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("task", no_wrap=True)
    _add_columns(table, names)
    for task, values in metrics["tasks"].items():
        table.add_row(task, *_cells(values, names))
        for domain, of_domain in _in_domains(metrics, task):
            table.add_row(f"  {domain}", *_cells(of_domain, names))
    return table


def _in_domains(metrics: Mapping[str, Any], task: str) -> list[tuple[str, Mapping[str, Any]]]:
    """A task's metrics in the domains with the most rows, and what these are called."""
    each = (metrics.get("domains") or {}).get("each") or []
    there = sorted((one for one in each if task in one["tasks"]), key=lambda one: -one["rows"])
    return [(one["domain"] or "(others)", one["tasks"][task]) for one in there[:_MOST_DOMAINS]]


def backtest_table(result: Mapping[str, Any]) -> Table:
    """Makes a table of a backtest, a line a tested day and task, 80 columns wide at most.

    Args:
        result: What backtest.json holds.
    """
    parts = [(day["train_days"][-1], day["test_day"], day["tasks"]) for day in result["days"]]
    parts.append(("", "total", result["total"]))
    every_day = [name for name, column in _columns().items() if column.every_day]
    names = _with_values(every_day, [t for _, _, tasks in parts for t in tasks.values()])
    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("trained", "tested"):
        table.add_column(title, no_wrap=True)
    table.add_column("task", no_wrap=True, max_width=20)
    _add_columns(table, names)
    for trained, tested, tasks in parts:
        for number, (task, values) in enumerate(tasks.items()):
            labels = ("", "") if number else (trained, tested)
            table.add_row(*labels, task, *_cells(values, names))
    return table


def _with_values(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in names if any(row.get(name) is not None for row in rows)]


def _add_columns(table: Table, names: Sequence[str]) -> None:
    columns = _columns()
    for name in names:
        table.add_column(columns[name].title, justify="right", no_wrap=True)


def _cells(values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    columns = _columns()
    return [_cell(columns[name], values) for name in names]


def _cell(column: Column, values: Mapping[str, Any]) -> str:
    if column.cell is not None:
        return column.cell(values)
    value: float | int | None = values.get(column.key)
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
