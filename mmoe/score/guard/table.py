"""A summary as one table for people."""

from rich.table import Table
from rich.text import Text

from mmoe.score.guard.summary import Summary

# Columns of the input that differ most from training; `_summary.json` has all
_MOST_COLUMNS = 12
_PERCENTILES = ("p1", "p50", "p99")
_SHARES = ("missing", "unseen")


def summary_table(summary: Summary) -> Table:
    """Makes a table: scores first, then the columns that differ most from training."""
    table = Table(
        title=Text(f"{summary.rows:,} rows", no_wrap=True),
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("column", no_wrap=True, max_width=32)
    titles = ("mean (training)", *_PERCENTILES, "NaN")
    for title in (*titles, "missing (training)", "unseen (training)", "PSI"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, figures in summary.scores.items():
        before = summary.of_training.get(name, {})
        quantiles = [_number(figures.get(percentile)) for percentile in _PERCENTILES]
        mean = _beside(_number(figures["mean"]), _number(before.get("mean")))
        table.add_row(name, mean, *quantiles, _share(figures["nan"]))
    ordered = sorted(summary.columns, key=lambda name: -_size(summary, name))
    for name in ordered[:_MOST_COLUMNS]:
        figures, before = summary.columns[name], summary.of_training.get(name, {})
        shares = [_beside(_share(figures.get(k)), _share(before.get(k))) for k in _SHARES]
        psi = figures.get("psi")
        table.add_row(name, *[""] * len(titles), *shares, "" if psi is None else f"{psi:.3f}")
    if len(ordered) > _MOST_COLUMNS:
        table.add_row(f"… and {len(ordered) - _MOST_COLUMNS} more columns")
    return table


def _beside(now: str, training: str) -> str:
    return f"{now} ({training})" if now and training else now


def _size(summary: Summary, name: str) -> float:
    """How much a column differs from training."""
    figures, before = summary.columns[name], summary.of_training.get(name, {})
    shares = [(figures.get(key) or 0.0) - (before.get(key) or 0.0) for key in _SHARES]
    psi = 0.0 if name in summary.parts else figures.get("psi") or 0.0
    return max(4 * abs(shares[0]), 4 * shares[1], psi)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"
