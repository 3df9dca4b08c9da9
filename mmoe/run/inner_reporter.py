"""`InnerReporter`: what one of many runs says, made short."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmoe.run.console import Tracker


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
