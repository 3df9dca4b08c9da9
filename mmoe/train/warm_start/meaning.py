"""What weights of features and tables mean: the settings that a continued run has to keep."""

from collections.abc import Callable, Iterator
from typing import Any

from mmoe.config import CrossFeature, DatetimeFeature, IdFeature, ListFeature, RunConfig

Difference = tuple[str, object, object]  # a key, its value there, its value here

# What may change of a feature or table without giving its weights another meaning
_FREE = frozenset(
    {
        "name",
        # How the files say it
        *("column", "separator", "weights", "weight_separator", "unit"),
        # How much of it is read, who gets a row, and how fast rows learn
        *("max_length", "keep", "min_count", "max_rows", "admit_after", "evict", "evict_every"),
        "learning_rate",
        # New parts are new inputs, told by name
        *("parts", "cyclic"),
        # Compared by table, after defaults are filled in
        "dim",
    }
)
# Of a table, whoever looks it up
_OF_TABLES = ("encoding", "hash_size", "rows")


def differences(there: RunConfig, here: RunConfig) -> Iterator[Difference]:
    """Settings of features and tables that both have, where the weights would mean something else.

    Features may come and go, and so may tables. `columns` of a cross must stay, since a renamed
    column cannot be told from another one.
    """
    for section in ("features", "tables"):
        for before, now in named_pairs(there, here, lambda c, s=section: getattr(c, s)):
            yield from _settings(f"{section}.{now.name}", before, now)
    old_tables, tables = _tables(there), _tables(here)
    for table, settings in tables.items():
        before = old_tables.get(table, settings)
        for key, value in settings.items():
            if value != before.get(key):
                yield f"{key} of table {table!r}", before.get(key), value


def named_pairs(
    there: RunConfig, here: RunConfig, section: Callable[[RunConfig], list[Any]]
) -> list[tuple[Any, Any]]:
    """Items of a section that both configs have, by name."""
    before = {item.name: item for item in section(there)}
    return [(before[item.name], item) for item in section(here) if item.name in before]


def _settings(where: str, there: Any, here: Any) -> Iterator[Difference]:
    one, two = _kept(there), _kept(here)
    for key in two:  # the kind is first
        if one.get(key) != two[key]:
            yield f"{where}.{key}", one.get(key), two[key]


def _kept(item: Any) -> dict[str, Any]:
    kept = {"kind": getattr(item, "kind", None)}
    kept |= {key: value for key, value in item.model_dump().items() if key not in _FREE}
    # Weighted lists are pooled otherwise; in which column the weights stand does not matter
    return kept | ({"weighted": item.weighted} if isinstance(item, ListFeature) else {})


def _tables(config: RunConfig) -> dict[str, dict[str, object]]:
    """For every table what its rows stand for, and its width, with defaults filled in."""
    shared = {table.name: table for table in config.tables}
    tables: dict[str, dict[str, object]] = {}
    for feature in config.features:
        if isinstance(feature, IdFeature):
            settings = shared.get(feature.table_name) or feature
            width = len(feature.columns) if isinstance(feature, CrossFeature) else 1
            tables[feature.table_name] = {
                "dim": settings.dim or config.model.embedding_dim,
                "content": f"crosses of {width} columns" if width > 1 else "ids",
                **{key: getattr(settings, key) for key in _OF_TABLES},
            }
        else:
            content = "parts of moments" if isinstance(feature, DatetimeFeature) else "buckets"
            for name in feature.derived_names:
                dim = feature.dim or config.model.embedding_dim
                tables[name] = {"dim": dim, "content": content}
    return tables
