"""What weights of features and tables mean: the settings that a continued run has to keep."""

from collections.abc import Callable, Iterator
from typing import Any

from mmoe.config import RunConfig
from mmoe.config.tasks import NumberTask
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.registry import codecs_of

Difference = tuple[str, object, object]  # a key, its value there, its value here


def differences(there: RunConfig, here: RunConfig) -> Iterator[Difference]:
    """Lists settings by which weights would mean something else than in the earlier run.

    Features may come and go, and so may tables. `columns` of a cross must stay, since a renamed
    column cannot be told from another one.
    """
    yield from _settings("features", _of_features(there), _of_features(here))
    yield from _settings("tables", _of_tables(there), _of_tables(here))
    old_tables, tables = _tables(there), _tables(here)
    for table, settings in tables.items():
        before = old_tables.get(table, settings)
        for key, value in settings.items():
            if key == "dim" and key not in before:
                continue  # vectors gave it there, and the tables themselves show it
            if value != before.get(key):
                yield f"{key} of table {table!r}", before.get(key), value


def named_pairs(
    there: RunConfig, here: RunConfig, section: Callable[[RunConfig], list[Any]]
) -> list[tuple[Any, Any]]:
    """Pairs the items of a section that both configs have, by name."""
    before = {item.name: item for item in section(there)}
    return [(before[item.name], item) for item in section(here) if item.name in before]


def with_kept_targets(config: RunConfig, there: RunConfig) -> RunConfig:
    """Returns the config with the targets that the towers of a run have learnt.

    Args:
        config: Of a run that goes on; a `target` that it states itself stays.
        there: Of the run that it goes on with.
    """
    kept = {task.name: task for task in there.tasks if isinstance(task, NumberTask)}
    tasks = [
        task.model_copy(update={"target": kept[task.name].target})
        if task.name in kept
        and isinstance(task, NumberTask)
        and "target" not in task.model_fields_set
        else task
        for task in config.tasks
    ]
    return config.model_copy(update={"tasks": tasks})


def _settings(
    section: str, there: dict[str, dict[str, object]], here: dict[str, dict[str, object]]
) -> Iterator[Difference]:
    for name in [name for name in here if name in there]:
        one, two = there[name], here[name]
        for key in two:  # the kind is first
            if one.get(key) != two[key]:
                yield f"{section}.{name}.{key}", one.get(key), two[key]


def _of_features(config: RunConfig) -> dict[str, dict[str, object]]:
    return {codec.feature.name: codec.meaning() for codec in codecs_of(config)}


def _of_tables(config: RunConfig) -> dict[str, dict[str, object]]:
    """Of those under `tables`."""
    return {table.name: table.model_dump(exclude=set(IdCodec.free)) for table in config.tables}


def _tables(config: RunConfig) -> dict[str, dict[str, object]]:
    """For every table what its rows stand for, and its width, with defaults filled in."""
    tables: dict[str, dict[str, object]] = {}
    for codec in codecs_of(config):
        tables |= codec.table_meanings()
    return tables
