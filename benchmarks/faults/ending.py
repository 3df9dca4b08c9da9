"""How a program of faults talks, and how it ends."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console


def teller() -> Callable[[str], None]:
    """Returns what prints a line to standard error, as it is."""
    console = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    return say


def end(
    counts: Mapping[str, object], passed: bool, folder: Path, say: Callable[[str], None]
) -> int:
    """Prints the counts, keeps the folder where something failed, and returns the exit code."""
    if passed:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"what failed lies in {folder}")
    print(json.dumps(counts))
    return 0 if passed else 1
