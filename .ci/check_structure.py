"""Functions of more than 60 lines, of which there may not be more. `make lint` runs it.

    python .ci/check_structure.py [--list]

A function's lines are those from `def` to its end, the docstring among them. Whoever shortens one
lowers LONG.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES, LONG = 60, 31


def main() -> int:
    """Prints long functions where there are more than there were, or with --list; 1 for more."""
    long = sorted(
        (found for top in ("mmoe", "datasets") for found in _long_functions(ROOT / top)),
        reverse=True,
    )
    more = len(long) > LONG
    if more or "--list" in sys.argv:
        for lines, where in long:
            sys.stderr.write(f"{where}: {lines} lines\n")
        sys.stderr.write(f"{len(long)} functions of more than {LINES} lines; at most {LONG}\n")
    return int(more)


def _long_functions(folder: Path) -> list[tuple[int, str]]:
    found = []
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LINES:
                    found.append((lines, f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return found


if __name__ == "__main__":
    sys.exit(main())
