"""What a person reads of a run: progress (a bar on a terminal, plain lines elsewhere), tables."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from mmoe.metrics import GAIN_HEADINGS, KINDS, Column, gain_rows
from mmoe.metrics.columns import NAMED_COLUMNS
from mmoe.terminal import readable

# Plain lines come this often; a log of an hour stays readable.
_SECONDS_BETWEEN_LINES = 10.0


class Terminal(Console):
    """A console on which no text can steer the terminal: all that rich draws goes through here."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders as rich does, with control characters of the data made readable."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(readable(text, keep="\n"), style)


class Reporter(Protocol):
    """Takes what long work says of its progress."""

    def say(self, text: str) -> None:
        """Says one line that stays."""
        ...

    @contextmanager
    def track(
        self, what: str, total: int | None, unit: str, *, done: int = 0
    ) -> Iterator["Tracker"]:
        """Begins a bar, or lines.

        Args:
            what: Such as `epoch 1/5`.
            total: Units of work; None: unknown.
            unit: As the rate names it, such as `rows`.
            done: Units that were done earlier; they are not in the rate.
        """
        ...


class Tracker(Protocol):
    """Progress of one task of a command."""

    def advance(self, amount: int, note: str = "") -> None:
        """Counts units of work as done.

        Args:
            amount: Units that are done since the last call.
            note: How it goes, such as losses.
        """
        ...


@dataclass(frozen=True)
class _Calls:
    """A tracker that is a function."""

    advance: Callable[..., None]


class SilentReporter:
    """A reporter that says nothing."""

    def say(self, text: str) -> None:
        """Says nothing."""

    @contextmanager
    def track(self, what: str, total: int | None, unit: str, *, done: int = 0) -> Iterator[Tracker]:
        """Gives a tracker that shows nothing."""
        yield _Calls(lambda amount, note="": None)


class ConsoleReporter:
    """A reporter that writes to standard error: standard output holds results alone."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Terminal(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """Says one line that stays, never wrapped, so that logs can be searched."""
        self.console.print(readable(text), markup=False, soft_wrap=True)

    @contextmanager
    def track(self, what: str, total: int | None, unit: str, *, done: int = 0) -> Iterator[Tracker]:
        """Shows a bar on a terminal; elsewhere a line every `_SECONDS_BETWEEN_LINES`."""
        counted, start, last = 0, time.perf_counter(), time.perf_counter()

        def rate(amount: int) -> str:
            nonlocal counted
            counted += amount
            return f"{counted / max(time.perf_counter() - start, 1e-9):,.0f} {unit}/s"

        def say(amount: int, note: str = "") -> None:
            nonlocal last
            speed = rate(amount)
            if time.perf_counter() - last >= _SECONDS_BETWEEN_LINES:
                last, of = time.perf_counter(), "" if total is None else f"/{total:,}"
                line = f"{what}  {done + counted:,}{of} {unit}  {speed}  {note}"
                self.say(line.rstrip())

        if not self.console.is_terminal:
            yield _Calls(say)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            # Last, so that a narrow terminal cuts the note and nothing else
            TextColumn(
                "{task.fields[note]}", table_column=TableColumn(no_wrap=True, overflow="ellipsis")
            ),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=total, completed=done, rate="", note="")
            yield _Calls(
                lambda amount, note="": progress.update(
                    task, advance=amount, rate=rate(amount), note=note
                )
            )


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Returns what says each line the first time alone: many runs warn of the same.

    Example:
        >>> say = once(print)
        >>> for line in ("note: a", "note: a", "note: b"):
        ...     say(line)
        note: a
        note: b
    """
    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return say_once


class InnerReporter:
    """A reporter for one run of a command that makes many: its progress is a note on theirs.

    Args:
        tracker: Of all runs.
        name: Of this one.
        warn: Told of what the run notes or warns of, which should not be lost.
        check: Called at every step; what it raises ends the run.
    """

    def __init__(
        self,
        tracker: Tracker,
        name: str,
        warn: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.tracker, self.name, self.warn, self.check = tracker, name, warn, check

    def say(self, text: str) -> None:
        """Passes on notes, warnings and alarms alone."""
        if text.strip().startswith(("note", "warning", "alarm")):
            self.warn(text.strip())

    @contextmanager
    def track(self, what: str, total: int | None, unit: str, *, done: int = 0) -> Iterator[Tracker]:
        """Shows how far it is beside the name of the run."""

        def advance(amount: int, note: str = "") -> None:
            nonlocal done
            done += amount
            share = f" {100 * done // total}%" if total else ""
            self.tracker.advance(0, f"{self.name}: {what}{share}")
            self.check()

        yield _Calls(advance)


# More would not be read: a line of progress has about 100 columns
_MOST_NAMED = 8


def by_task(values: Mapping[str, float | None], name: str = "", separator: str = " ") -> str:
    """Says the numbers of tasks; those that are None are left out.

    Args:
        values: By task.
        name: Of the number, said behind each task's name.
        separator: Between tasks that are named.

    Returns:
        A line; empty where no task has a number.

    Example:
        >>> by_task({"click": 0.75, "buy": 0.8, "like": None}, "auc", ", ")
        'click auc 0.7500, buy auc 0.8000'
        >>> by_task({f"task{number}": number / 10 for number in range(10)}, "auc")
        'mean auc 0.4500 of 10 tasks, from 0.0000 (task0) to 0.9000 (task9)'
    """
    known = {task: value for task, value in values.items() if value is not None}
    named = f" {name}" if name else ""
    if len(known) <= _MOST_NAMED:
        return separator.join(f"{task}{named} {value:.4f}" for task, value in known.items())
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    mean = float(np.mean(list(known.values())))
    return (
        f"mean{named} {mean:.4f} of {len(known)} tasks, "
        f"from {known[low]:.4f} ({low}) to {known[high]:.4f} ({high})"
    )


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
