"""Names that have moved: importable where they were for one release, with a warning.

`tests/public_api.txt` lists what stays importable; CHANGELOG.md lists the moves.
"""

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def moved(name: str, room: str, homes: Mapping[str, str]) -> Any:
    """Gets a name from its new home, and warns; for a module's `__getattr__`.

    Args:
        name: What was asked for.
        room: The module that was asked.
        homes: For each name that moved, the module that it is in now; `module:name` where it is
            called otherwise there.

    Raises:
        AttributeError: The module never had such a name.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     moved("RunDirectory", "mmoe.score", {"RunDirectory": "mmoe.run"}).__name__
        'RunDirectory'
        >>> str(caught[0].message)
        'mmoe.score.RunDirectory has moved: from mmoe.run import RunDirectory'
    """
    if name not in homes:
        raise AttributeError(f"module {room!r} has no attribute {name!r}")
    home, _, new = homes[name].partition(":")
    new = new or name
    warnings.warn(
        f"{room}.{name} has moved: from {home} import {new}", DeprecationWarning, stacklevel=3
    )
    return getattr(import_module(home), new)
