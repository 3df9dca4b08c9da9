"""A backtest as a table for people: one line a tested day and task, then the total."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_COLUMNS = {
    "auc": "AUC",
    "gauc": "GAUC",
    "ne": "NE",
    "calibration": "calib.",
    "rmse": "RMSE",
    "mae": "MAE",
    "rows": "rows",
    "positives": "positives",
}
_TASK_WIDTH = 20  # so that all fits into a terminal of 80


def backtest_table(result: Mapping[str, Any]) -> Table:
    """Metrics by tested day and task, and those of all tested rows together.

    Args:
        result: What backtest.json holds.
    """
    parts = [(day["train_days"][-1], day["test_day"], day["tasks"]) for day in result["days"]]
    parts.append(("", "total", result["total"]))
    values = [task for _, _, tasks in parts for task in tasks.values()]
    names = [name for name in _COLUMNS if any(task.get(name) is not None for task in values)]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("trained", "tested"):
        table.add_column(title, no_wrap=True)
    table.add_column("task", no_wrap=True, max_width=_TASK_WIDTH)
    for name in names:
        table.add_column(_COLUMNS[name], justify="right", no_wrap=True)
    for trained, tested, tasks in parts:
        for number, (task, metrics) in enumerate(tasks.items()):
            labels = ("", "") if number else (trained, tested)
            table.add_row(*labels, task, *(_cell(metrics.get(name)) for name in names))
    return table


def _cell(value: float | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
