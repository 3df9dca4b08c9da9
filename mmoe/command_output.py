"""What commands print: results on standard output, progress on standard error."""

import json
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


def print_json(result: Any) -> None:
    """Prints JSON on standard output, as the files of a run have it."""
    print(json.dumps(result, indent=2, allow_nan=False))


def say(line: object) -> None:
    """Prints a line on standard output, whatever names from data are in it."""
    print(readable(str(line)))
