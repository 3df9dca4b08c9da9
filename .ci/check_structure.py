"""Functions of more than 60 lines, of which there may not be more, and circles of imports: none.

`make lint` runs it.

    python .ci/check_structure.py [--list]

A function's lines are those from `def` to its end, the docstring among them. Whoever shortens one
lowers LONG. Imports count wherever they stand, under TYPE_CHECKING and in functions too; a name
that a package hands on is its module's.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES, LONG = 60, 12


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
    circle = circle_of_imports(ROOT)
    if circle:
        sys.stderr.write(f"imports go round: {' → '.join(circle)}\n")
    return int(more or bool(circle))


def circle_of_imports(root: Path) -> list[str]:
    """Returns modules each of which imports the next one, the first again at the end, or nothing.

    Args:
        root: Holds mmoe, and datasets, which is `mmoe.datasets`.
    """
    trees, packages = dict[str, ast.Module](), set[str]()
    for file in (file for top in ("mmoe", "datasets") for file in (root / top).rglob("*.py")):
        inside = file.relative_to(root)
        if inside.parts[:2] == ("mmoe", "datasets"):
            continue  # a link, where there is one
        parts = ("mmoe", *inside.parts) if inside.parts[0] == "datasets" else inside.parts
        module = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
        trees[module] = ast.parse(file.read_text(encoding="utf-8"))
        if file.name == "__init__.py":
            packages.add(module)
    handed_on = {
        (package, name): source for package in packages for source, name in _named(trees[package])
    }

    def home(source: str, name: str) -> str:
        while f"{source}.{name}" not in trees and (source, name) in handed_on:
            source = handed_on[source, name]
        inner = f"{source}.{name}"
        return inner if inner in trees else source

    imports = {
        module: {
            found
            for source, name in _named(tree)
            if (found := home(source, name)) in trees
            and found != module
            # A package hands names of its modules on
            and not (module in packages and found.startswith(f"{module}."))
        }
        for module, tree in trees.items()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def _named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What is imported: the module, and the name out of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


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
