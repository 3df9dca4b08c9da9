"""Progress for a person: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
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
                "{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")
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
