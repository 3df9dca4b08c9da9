"""Lines that a user adds to a program, counted in one that runs."""

import ast
import math
from pathlib import Path

from benchmarks.convert import example
from benchmarks.convert.bench import Bench
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread

_PACKAGE = "mmoe"


def lines(bench: Bench) -> list[Result]:
    """Counts, and runs the program, so that what is counted is what works."""
    source = Path(example.__file__).read_text(encoding="utf-8")
    found = added_lines(source)
    loss = example.main()
    if not math.isfinite(loss):
        raise ValueError(f"example: expected a loss that is a number, got {loss}")
    texts = [source.splitlines()[number - 1].strip() for number in found]
    count = float(len(found))
    spread = Spread(count, count, count, 1)
    return [Result(key="lines", spread=spread, note="; ".join(texts), digits=0)]


def added_lines(source: str) -> list[int]:
    """Numbers of the lines, imports left out, that say anything which was imported from mmoe.

    A call that goes over several lines counts as all of them.
    """
    tree, own = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == _PACKAGE:
            own |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names = [alias for alias in node.names if alias.name.split(".")[0] == _PACKAGE]
            own |= {alias.asname or _PACKAGE for alias in names}
    found: set[int] = set()
    for statement in ast.walk(tree):
        # A body's statements are looked at one by one
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body"):
            names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if names & own:
                found |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return sorted(found)


RACES = (Race(("lines",), lines),)
