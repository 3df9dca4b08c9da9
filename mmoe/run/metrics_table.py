"""Metrics as tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mmoe.metrics import GAIN_HEADINGS, KINDS, Column, gain_rows
from mmoe.metrics.columns import NAMED_COLUMNS

_MOST_DOMAINS = 8  # a task; metrics.json has all


def plain_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    *,
    names: int = 1,
    widest: int | None = None,
) -> Table:
    """Makes a table without lines; the first columns are `names`, the last of so many letters."""
    above = Text(title, no_wrap=True, overflow="ignore") if title else None
    table = Table(box=None, padding=(0, 1, 0, 0), title=above, title_justify="left")
    for number, heading in enumerate(headings):
        most = widest if number == names - 1 else None
        side = "left" if number < names else "right"
        table.add_column(heading, justify=side, no_wrap=True, max_width=most)
    for row in rows:
        table.add_row(*row)
    return table


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Columns of all kinds of tasks that some row has: metrics, then counts of rows."""
    found = {column.key: column for kind in KINDS.values() for column in kind.columns}
    shown = [column for column in (found | NAMED_COLUMNS).values() if column.title]
    there = [c for c in shown if any(row.get(c.key) is not None for row in rows)]
    return sorted(there, key=lambda column: column.is_count)


def metrics_table(metrics: Mapping[str, Any], title: str = "test split") -> Table:
    """Makes a table of metrics, a line a task; `best` is the AUC of the true probabilities.

    Below a task stand the domains with the most rows, where there are domains.

    Args:
        metrics: What metrics.json holds.
        title: Which rows they were measured on.
    """
    columns = _columns(list(metrics["tasks"].values()))
    rows = []
    for task, values in metrics["tasks"].items():
        rows.append([task, *(_cell(column, values) for column in columns)])
        for domain, of_domain in _in_domains(metrics, task):
            rows.append([f"  {domain}", *(_cell(column, of_domain) for column in columns)])
    # Twelve columns have to fit into a terminal of 100
    return plain_table(["task", *(column.title for column in columns)], rows, title)


def over_wide_table(over_wide: Mapping[str, Any]) -> Table:
    """Makes a table of what the mixture adds to the wide part, a line a task.

    Args:
        over_wide: As metrics.json has it.
    """
    title = "what the mixture adds over the wide part"
    if over_wide["untrained"]:
        title += ": nothing, as the best weights are those before the first epoch"
    return plain_table(GAIN_HEADINGS, gain_rows(over_wide), title, names=2)


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
    found = _columns([values for _, _, tasks in parts for values in tasks.values()])
    columns = [column for column in found if column.every_day]
    rows = [
        [*(("", "") if number else (trained, tested)), task, *(_cell(c, values) for c in columns)]
        for trained, tested, tasks in parts
        for number, (task, values) in enumerate(tasks.items())
    ]
    headings = ["trained", "tested", "task", *(column.title for column in columns)]
    return plain_table(headings, rows, names=3, widest=20)


def _cell(column: Column, values: Mapping[str, Any]) -> str:
    if column.cell is not None:
        return column.cell(values)
    value: float | int | None = values.get(column.key)
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
