"""Section `as_they_come`: logs as public files and lakes have them, against what is true of them.

Each module here is a kind of input: its `TARGETS` (JSON key → target) and its `measure`.
"""

from collections.abc import Callable, Sequence
from types import ModuleType

from benchmarks.inputs.as_they_come import (
    alive_columns,
    lake_tables,
    missing_roads,
    padding,
    repeats_and_leaks,
    units,
)
from benchmarks.inputs.section import Measured, Section

PARTS: Sequence[ModuleType] = [
    alive_columns,
    lake_tables,
    missing_roads,
    padding,
    repeats_and_leaks,
    units,
]


def _measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    values: dict[str, float] = {}
    details = {}
    for part in PARTS:
        name = part.__name__.rpartition(".")[2]
        say(f"{name}: {', '.join(part.TARGETS)}")
        measured = part.measure(seeds, say)
        values |= measured.values
        details[name] = dict(measured.details)
    return Measured(values, details)


SECTION = Section(
    "as_they_come",
    {key: target for part in PARTS for key, target in part.TARGETS.items()},
    _measure,
)
