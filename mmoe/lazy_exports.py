"""A room's names, imported from their modules on first use: a door that costs nothing unopened."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazily(room: str, names: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which imports a name from its module when it is asked for.

    Args:
        room: The package, `__name__`.
        names: Module, below the package, → the names that it has for others.

    Example:
        >>> door = lazily("mmoe.parallel", {"launch.launcher": ["launched_ranks"]})
        >>> door("launched_ranks").__module__
        'mmoe.parallel.launch.launcher'
        >>> door("lunched_ranks")
        Traceback (most recent call last):
        AttributeError: module 'mmoe.parallel' has no attribute 'lunched_ranks'
    """
    homes = {name: module for module, names_there in names.items() for name in names_there}

    def __getattr__(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{room}.{homes[name]}"), name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return __getattr__
