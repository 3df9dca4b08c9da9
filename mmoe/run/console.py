"""What a person sees while something runs: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

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
