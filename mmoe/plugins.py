"""Modules that register kinds of their own: named by a config, by `--import`, or installed.

To import a module is to run it. So a config that one trains with, and a command, import what they
name; a run's folder, which may be anybody's, nothing that has not been imported or installed.
"""

import re
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def import_modules(
    names: Iterable[str], origin: str = "--import", *, installed: bool = False
) -> None:
    """Imports modules, which register their kinds.

    Args:
        names: Dotted, as in `import my_pkg.ranking`.
        origin: Who asks for them; starts error messages.
        installed: They are those of installed packages: what the current folder has by their names,
            which may be that of somebody's run, is not meant.

    Raises:
        NotImported: One is not found, or raises; says which, and why.

    Example:
        >>> import_modules(["my_pkg.ranking"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        mmoe.errors.NotImported: --import: my_pkg.ranking: cannot be imported: there is no ...
    """
    for name in names:
        if re.fullmatch(MODULE_NAME, name) is None or name.endswith(".py"):
            raise ValueError(
                f"{origin}: {name!r}: expected the name of a module, as in `import my_pkg.ranking`"
                f"{_meant(name)}"
            )
        if name in sys.modules:
            continue
        if _looks_here and not installed and not {str(Path.cwd()), ""} & {*sys.path}:
            sys.path.insert(0, str(Path.cwd()))
        try:
            import_module(name)
        except (Exception, SystemExit) as error:
            why = _why(error, name)
            raise NotImported(f"{origin}: {name}: cannot be imported: {why}") from None


def import_for_run(names: Iterable[str], origin: str) -> None:
    """Imports modules that a run names, as far as the user, not the run, allows them.

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
        import_modules([name], origin, installed=True)


def installed_modules() -> list[str]:
    """Returns the modules that installed packages name as plugins; imports none of them."""
    return [module for module, _ in _installed()]


@cache  # it reads the metadata of every package there is
def _installed() -> tuple[tuple[str, str], ...]:
    """Returns each plugin's module, and which plugin it is."""
    from importlib.metadata import entry_points  # 20 ms, for those who need it

    return tuple((_module(plugin), _called(plugin)) for plugin in entry_points(group=GROUP))


def _module(plugin: "EntryPoint") -> str:
    if plugin.pattern.match(plugin.value) is None:  # `module` would raise an AttributeError
        raise ValueError(
            f"{_called(plugin)}: its entry point names no module: {plugin.value!r}; mend its "
            "package, or uninstall it"
        )
    return plugin.module


def _called(plugin: "EntryPoint") -> str:
    package = "a package" if plugin.dist is None else plugin.dist.name
    return f"the plugin {plugin.name!r} of {package}, installed here"


@cache
def load_installed() -> None:
    """Imports the plugins of installed packages, once; looked for where a kind is not known.

    Raises:
        NotImported: One of them cannot be imported; names its package.
    """
    for module, plugin in _installed():
        import_modules([module], plugin, installed=True)


def _meant(path: str) -> str:
    """The module of a file, where a file was named."""
    name = path.removesuffix(".py").replace("/", ".")
    is_one = path.endswith(".py") and re.fullmatch(MODULE_NAME, name) is not None
    return f"; {path} is {name}" if is_one else ""


def _why(error: BaseException, name: str) -> str:
    """Returns one line: what is missing, or what the import raised, and where."""
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


def import_extra(module: str) -> Any:
    """Imports a module of a package that an extra of mmoe installs, such as `pyspark.sql`.

    Raises:
        ValueError: It is not installed, or cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        extra = package.removeprefix("py")
        raise ValueError(
            f"{package} cannot be imported ({error}); pip install 'mmoe[{extra}]'"
        ) from None


def check_extra(package: str) -> None:
    """Looks for such a package, where it is to be imported later.

    Raises:
        ValueError: As `import_extra`.
    """
    if package in sys.modules or find_spec(package) is None:
        import_extra(package)
