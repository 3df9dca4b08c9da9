"""What a person sees while something runs: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Column

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
        """Begins a bar (or lines) for `total` units of work, `done` of them earlier."""
        ...


class Tracker(Protocol):
    """Progress of one task of a command."""

    def advance(self, amount: int, note: str = "") -> None:
        """Counts `amount` more units as done; `note` says how it goes (losses)."""
        ...


class SilentReporter:
    """A reporter that says nothing."""

    def say(self, text: str) -> None:
        """Says nothing."""

    @contextmanager
    def track(self, what: str, total: int | None, unit: str, *, done: int = 0) -> Iterator[Tracker]:
        """Gives a tracker that shows nothing."""
        yield _Silent()


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
        if not self.console.is_terminal:
            yield _Lines(self, what, total, unit, done)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            # Last, so that a narrow terminal cuts the note and nothing else
            TextColumn(
                "{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=total, completed=done, rate="", note="")
            yield _Bar(progress, task, unit)


class _Silent:
    def advance(self, amount: int, note: str = "") -> None:
        pass


class _Rate:
    """Units a second since the start."""

    def __init__(self, unit: str) -> None:
        self.unit, self.done, self.start = unit, 0, time.perf_counter()

    def add(self, amount: int) -> str:
        self.done += amount
        seconds = max(time.perf_counter() - self.start, 1e-9)
        return f"{self.done / seconds:,.0f} {self.unit}/s"


class _Bar:
    def __init__(self, progress: Progress, task: object, unit: str) -> None:
        self.progress, self.task, self.rate = progress, task, _Rate(unit)

    def advance(self, amount: int, note: str = "") -> None:
        rate = self.rate.add(amount)
        self.progress.update(self.task, advance=amount, rate=rate, note=note)  # type: ignore[arg-type]


class _Lines:
    def __init__(
        self, reporter: ConsoleReporter, what: str, total: int | None, unit: str, done: int
    ) -> None:
        self.before = done
        self.reporter, self.what, self.total = reporter, what, total
        self.rate, self.last = _Rate(unit), time.perf_counter()

    def advance(self, amount: int, note: str = "") -> None:
        rate = self.rate.add(amount)
        if time.perf_counter() - self.last < _SECONDS_BETWEEN_LINES:
            return
        self.last = time.perf_counter()
        of = f"/{self.total:,}" if self.total is not None else ""
        line = f"{self.what}  {self.before + self.rate.done:,}{of} {self.rate.unit}  {rate}  {note}"
        self.reporter.say(line.rstrip())


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
        yield _Note(self, what, total, done)


class _Note:
    def __init__(self, reporter: InnerReporter, what: str, total: int | None, done: int) -> None:
        self.reporter, self.what, self.total, self.done = reporter, what, total, done

    def advance(self, amount: int, note: str = "") -> None:
        self.done += amount
        share = f" {100 * self.done // self.total}%" if self.total else ""
        self.reporter.tracker.advance(0, f"{self.reporter.name}: {self.what}{share}")
        self.reporter.check()


# More would not be read: a line of progress has about 100 columns
MOST_NAMED = 8


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
    if len(known) <= MOST_NAMED:
        return separator.join(f"{task}{named} {value:.4f}" for task, value in known.items())
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    mean = float(np.mean(list(known.values())))
    return (
        f"mean{named} {mean:.4f} of {len(known)} tasks, "
        f"from {known[low]:.4f} ({low}) to {known[high]:.4f} ({high})"
    )
