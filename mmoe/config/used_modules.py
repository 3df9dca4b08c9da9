"""A config names the modules of the kinds that it uses, so that its run can be read elsewhere."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from mmoe.config.kinds import HasKinds
from mmoe.config.run import RunConfig
from mmoe.plugins import installed_modules


def with_used_modules(config: RunConfig) -> RunConfig:
    """Returns the config with the modules of its kinds among `imports`, those that it lacks.

    Built-in kinds need none, nor do those of installed plugins; those of a notebook or script
    (`__main__`) have none that another process could import.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> from mmoe.config.used_modules import with_used_modules
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> with_used_modules(config).imports
        []
    """
    used = dict.fromkeys(_module(section) for section in _of_others(config))
    named = list(config.imports)
    if used:
        known = [*named, *installed_modules(), "__main__"]
        named += [module for module in used if not any(_is_in(module, name) for name in known)]
    return config.model_copy(update={"imports": named})


def _of_others(value: Any) -> Iterator[HasKinds]:
    """Sections whose kind is not built in."""
    if isinstance(value, HasKinds) and not type(value).__module__.startswith("mmoe."):
        yield value
    if isinstance(value, BaseModel):
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inside in value:
            yield from _of_others(inside)


def _module(section: HasKinds) -> str:
    """Where its kind was registered: with what implements it."""
    return section.registry.implementation(section).__module__


def _is_in(module: str, name: str) -> bool:
    return f"{module}.".startswith(f"{name}.")
