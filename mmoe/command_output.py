"""What commands print: results on standard output, progress on standard error."""

from typing import Any

from mmoe.terminal import readable


def reporter(quiet: bool) -> Any:
    """Returns what is told of progress."""
    from mmoe.run.console import ConsoleReporter, SilentReporter

    return SilentReporter() if quiet else ConsoleReporter()


def print_table(table: Any) -> None:
    """Prints a table on standard output."""
    from mmoe.run.console import Terminal

    Terminal(width=200, highlight=False).print(table)


def say(line: object) -> None:
    """Prints a line on standard output, whatever names from data are in it."""
    print(readable(str(line)))
