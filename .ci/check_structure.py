"""Counts what makes the library hard to read, and fails where there is more of it than before.

`make lint` runs it.

    python .ci/check_structure.py [--list]

--list prints every place. Whoever lowers a number lowers its limit in LIMITS. Imports count
wherever they stand, under TYPE_CHECKING and in functions too; a name that a package hands on is its
module's.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG, SHALLOW = 60, 80  # lines of a function; of a module
# An operator each, or a kind that a registry names
ONE_EACH = ("mmoe.ops", "mmoe.models", "mmoe.mixture.gates", "mmoe.datasets.features")
LIMITS = {
    "circles of imports": 0,
    f"functions of more than {LONG} lines": 0,
    f"modules under {SHALLOW} lines with one importer, in their own folder": 0,
    "folders with one module": 0,
    "imports past a room's door": 446,
    "isinstance of another room's class": 51,
    "getattr with a literal name": 26,
}


@dataclass(frozen=True)
class Code:
    """The library's modules, parsed.

    Attributes:
        trees: By module; `datasets` is `mmoe.datasets`.
        files: Lines and path of each, as printed.
        packages: Modules that are an `__init__.py`.
    """

    trees: Mapping[str, ast.Module]
    files: Mapping[str, tuple[int, str]]
    packages: frozenset[str]

    @classmethod
    def read(cls, root: Path) -> "Code":
        """Reads mmoe, and datasets, which is `mmoe.datasets`, from `root`."""
        trees, files, packages = dict[str, ast.Module](), {}, set[str]()
        for file in (file for top in ("mmoe", "datasets") for file in (root / top).rglob("*.py")):
            inside = file.relative_to(root)
            if inside.parts[:2] == ("mmoe", "datasets"):
                continue  # a link, where there is one
            parts = ("mmoe", *inside.parts) if inside.parts[0] == "datasets" else inside.parts
            module = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
            text = file.read_text(encoding="utf-8")
            trees[module], files[module] = ast.parse(text), (text.count("\n"), inside.as_posix())
            if file.name == "__init__.py":
                packages.add(module)
        return cls(trees, files, frozenset(packages))

    @cached_property
    def handed_on(self) -> dict[tuple[str, str], str]:
        """A package and a name that it hands on → the module that it is from."""
        found = {
            (at, name): source for at in self.packages for source, name in _named(self.trees[at])
        }
        for at in self.packages:
            found |= {
                (at, name): f"{at}.{module}" for module, name in _lazily_named(self.trees[at])
            }
        return found

    def home(self, source: str, name: str) -> str:
        """Returns the module that a name imported from `source` is defined in, or `source`."""
        while f"{source}.{name}" not in self.trees and (source, name) in self.handed_on:
            source = self.handed_on[source, name]
        inner = f"{source}.{name}"
        return inner if inner in self.trees else source

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each imports; a package hands on names of its own without importing."""
        return {
            module: {
                found
                for source, name in _named(tree)
                if (found := self.home(source, name)) in self.trees
                and found != module
                and not (module in self.packages and found.startswith(f"{module}."))
            }
            for module, tree in self.trees.items()
        }

    @cached_property
    def texts(self) -> set[str]:
        """All strings that may name a module."""
        nodes = (node for tree in self.trees.values() for node in ast.walk(tree))
        found = (node.value for node in nodes if isinstance(node, ast.Constant))
        return {text.partition(":")[0] for text in found if isinstance(text, str)}

    def room(self, module: str) -> str:
        """Returns the folder below `mmoe` that a module lies in; a loose module is a room."""
        return ".".join(module.split(".")[:2])

    def calls(self, name: str) -> Iterator[tuple[str, ast.Call]]:
        """Yields the calls of a plain function, each with its module."""
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                    yield module, node

    def at(self, module: str, node: ast.AST) -> str:
        """Returns where a node stands, as printed."""
        return f"{self.files[module][1]}:{getattr(node, 'lineno', 1)}"


def main() -> int:
    """Prints each count that is above its limit, with its places; with --list all."""
    code, failed = Code.read(ROOT), False
    for (rule, limit), places in zip(LIMITS.items(), counted(code), strict=True):
        more = len(places) > limit
        if more or "--list" in sys.argv:
            sys.stderr.writelines(f"{place}\n" for place in places)
            sys.stderr.write(f"{rule}: {len(places)}; at most {limit}\n")
        failed = failed or more
    return int(failed)


def counted(code: Code) -> Iterator[list[str]]:
    """Yields the places of each rule, in the order of LIMITS."""
    circle = circle_of_imports(code)
    yield [" → ".join(circle)] if circle else []
    yield _long_functions(code)
    yield _shallow_modules(code)
    yield _folders_with_one_module(code)
    yield _imports_past_doors(code)
    yield _foreign_isinstance(code)
    yield [
        f"{code.at(module, call)} {ast.unparse(call)}"
        for module, call in code.calls("getattr")
        if isinstance(call.args[1], ast.Constant)
    ]


def circle_of_imports(code: Code) -> list[str]:
    """Returns modules each of which imports the next one, the first again at the end."""
    try:
        TopologicalSorter(code.imports).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def _long_functions(code: Code) -> list[str]:
    found = []
    for module, tree in code.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONG:
                    found.append((lines, f"{code.at(module, node)} {node.name}: {lines} lines"))
    return [place for _, place in sorted(found, reverse=True)]


def _shallow_modules(code: Code) -> list[str]:
    importers = defaultdict[str, set[str]](set)
    for module, imported in code.imports.items():
        for found in imported:
            importers[found].add(module)
    return [
        f"{file}: {lines} lines, imported by {next(iter(importers[module]))} alone"
        for module, (lines, file) in sorted(code.files.items())
        if lines < SHALLOW
        and module not in code.packages
        and module not in code.texts
        and not module.startswith(ONE_EACH)
        and len(importers[module]) == 1
        and next(iter(importers[module])).rpartition(".")[0] == module.rpartition(".")[0]
    ]


def _folders_with_one_module(code: Code) -> list[str]:
    inside = defaultdict[str, list[str]](list)
    for module in code.trees:
        inside[module.rpartition(".")[0]].append(module)
    return [
        f"{code.files[package][1]}: {inside[package][0]} alone"
        for package in sorted(code.packages)
        if len(inside[package]) == 1
    ]


def _imports_past_doors(code: Code) -> list[str]:
    found = []
    for module, tree in code.trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module not in code.trees:
                continue
            other = code.room(node.module)
            if other != code.room(module) and node.module != other and other in code.packages:
                found.append(f"{code.at(module, node)} {node.module}")
    return found


def _foreign_isinstance(code: Code) -> list[str]:
    """Finds isinstance of classes that another room defines, by what the module imports."""
    found = []
    for module, call in code.calls("isinstance"):
        imported = {name: code.home(source, name) for source, name in _named(code.trees[module])}
        for node in ast.walk(call.args[1]):
            home = imported.get(node.id, "") if isinstance(node, ast.Name) else ""
            if home in code.trees and code.room(home) != code.room(module):
                found.append(f"{code.at(module, call)} {ast.unparse(node)}")
    return found


def _named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What is imported: the module, and the name out of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def _lazily_named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What `lazily` is told: the module below the package, and each name that it has for others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazily":
            table = node.args[1]
            assert isinstance(table, ast.Dict), "a table as it stands, of which this reads"
            for module, names in zip(table.keys, table.values, strict=True):
                assert isinstance(module, ast.Constant)
                for name in ast.walk(names):
                    if isinstance(name, ast.Constant):
                        yield module.value, name.value


if __name__ == "__main__":
    sys.exit(main())
