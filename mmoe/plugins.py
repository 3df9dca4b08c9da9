"""Modules that register kinds of their own: named by a config, by `--import`, or installed.

To import a module is to run it. So a config that one trains with, and a command, import what they
name; a run's folder, which may be anybody's, nothing that has not been imported or installed.
"""

import sys
import traceback
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from mmoe.errors import NotImported

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "mmoe.plugins"
MODULE_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"

_looks_here = False


def look_in_current_folder() -> None:
    """Finds modules in the current folder too, once one is asked for: as `python -m` does."""
    global _looks_here
    _looks_here = not sys.flags.safe_path


def import_modules(names: Iterable[str], origin: str = "--import") -> None:
    """Imports modules, which register their kinds.

    Args:
        names: Dotted, as in `import my_pkg.ranking`.
        origin: Who asks for them; starts error messages.

    Raises:
        NotImported: One is not found, or raises; says which, and why.

    Example:
        >>> import_modules(["my_pkg.ranking"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        mmoe.errors.NotImported: --import: my_pkg.ranking: cannot be imported: there is no ...
    """
    for name in names:
        if name in sys.modules:
            continue
        if _looks_here and not {str(Path.cwd()), ""} & {*sys.path}:
            sys.path.insert(0, str(Path.cwd()))
        try:
            import_module(name)
        except (Exception, SystemExit) as error:
            why = _why(error, name)
            raise NotImported(f"{origin}: {name}: cannot be imported: {why}") from None


def import_for_run(names: Iterable[str], origin: str) -> None:
    """Imports what a run names, as far as somebody else than the run has said so.

    A module that is imported already runs no more; one that an installed package names in the
    entry-point group `mmoe.plugins` was allowed by whoever installed it.

    Args:
        names: What the run says that it needs.
        origin: The run's file; starts error messages.

    Raises:
        NotImported: A module is not allowed, or cannot be imported.

    Example:
        >>> import_for_run(["json"], "runs/a/config.yaml")  # imported long since
        >>> import_for_run(["antigravity"], "runs/a/config.yaml")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        mmoe.errors.NotImported: runs/a/config.yaml: needs the module antigravity, which a run's ...
    """
    for name in names:
        if name not in sys.modules and name not in installed_modules():
            raise NotImported(
                f"{origin}: needs the module {name}, which a run's folder may not import by "
                f"itself; if you trust it, say --import {name} (in Python: import it first)"
            )
        import_modules([name], origin)


def installed_modules() -> list[str]:
    """Returns the modules that installed packages name as plugins; imports none of them."""
    return [plugin.module for plugin in _installed()]


@cache  # it reads the metadata of every package there is
def _installed() -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points  # 20 ms, for those who need it

    return tuple(entry_points(group=GROUP))


@cache
def load_installed() -> None:
    """Imports the plugins of installed packages, once; looked for where a kind is not known.

    Raises:
        NotImported: One of them cannot be imported; names its package.
    """
    for plugin in _installed():
        package = "a package" if plugin.dist is None else plugin.dist.name
        import_modules([plugin.module], f"the plugin {plugin.name!r} of {package}, installed here")


def _why(error: BaseException, name: str) -> str:
    """In one line: what is not there, or what it raised, and where."""
    if isinstance(error, ModuleNotFoundError) and _is_part(error.name, name):
        return (
            f"there is no module {error.name!r}; install its package, put its folder into "
            "PYTHONPATH, or start the command in the folder that holds it"
        )
    what = " ".join("".join(traceback.format_exception_only(error)).split())
    if isinstance(error, SyntaxError):
        return what  # names its file and line
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{what} ({Path(frame.filename).name}, line {frame.lineno})"


def _is_part(missing: str | None, name: str) -> bool:
    """Whether what is missing is the module itself or a package that it is in."""
    return missing is not None and f"{name}.".startswith(f"{missing}.")
