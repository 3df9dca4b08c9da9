"""Bundled recipes: complete configs by name, `census-income` instead of a path."""

import difflib
import os
import warnings
from collections.abc import Callable, Iterable
from importlib.resources import as_file, files

from mmoe.config import RunConfig, load_config

_CONFIG_SUFFIXES = (".yaml", ".yml")


def recipe_names() -> list[str]:
    """Lists the names of the bundled recipes, sorted."""
    names = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_recipe(
    name_or_path: str, overrides: Iterable[str] = (), *, say: Callable[[str], None] = warnings.warn
) -> RunConfig:
    """Loads a bundled recipe by name, or a config file (.yaml, .yml, or with a slash).

    Args:
        name_or_path: Such as `synthetic-funnel` or `my/config.yaml`.
        overrides: `key.path=value` assignments, as for `load_config`.
        say: As there.

    Raises:
        ValueError: There is no such recipe (the nearest is named), or the config is wrong.
    """
    if is_path(name_or_path):
        return load_config(name_or_path, overrides, say=say)
    names = recipe_names()
    if "=" in name_or_path:
        raise ValueError(
            f"{name_or_path!r} is neither a recipe nor a config file; to change a value, say --set "
            f"{name_or_path}"
        )
    if name_or_path not in names:
        close = difflib.get_close_matches(name_or_path, names, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"there is no recipe {name_or_path!r}{hint}; the recipes are: {', '.join(names)}; a "
            "config file's name ends in .yaml"
        )
    with as_file(files(__name__) / f"{name_or_path}.yaml") as path:
        return load_config(path, overrides, say=say)


def is_path(name_or_path: str) -> bool:
    """Returns whether it is a config file's path and no recipe's name."""
    separators = {"/", os.sep, os.altsep or "/"}
    return name_or_path.endswith(_CONFIG_SUFFIXES) or any(s in name_or_path for s in separators)
