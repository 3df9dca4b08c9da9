"""Finds which columns a run needs: only these are read."""

from collections.abc import Iterable

import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.config.data import MISSING_WORDS
from mmoe.datasets.labels.expressions import columns_of, texts_of
from mmoe.datasets.rows.locations import place
from mmoe.datasets.values.text import TextCells, cleaned, first_word


def required_columns(
    config: RunConfig, there: Iterable[str] | None = None, *, labels: bool = True
) -> list[str]:
    """Lists the columns of features and, with `labels`, of tasks, groups and the split.

    Args:
        config: The run.
        there: The columns of the data, if known: a label that is one of them is that column, even
            if it could be read as an expression (`a-b`).
        labels: False when only scores are wanted: columns that features of `model.bias` alone read
            are then left out, unless scores need them.

    Returns:
        Distinct names, features first.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "long", "label": "seconds / length > 0.9"}]})
        >>> required_columns(config)
        ['age', 'seconds', 'length']
        >>> required_columns(config, labels=False)
        ['age']
    """
    return list(column_uses(config, there, labels=labels))


def column_uses(
    config: RunConfig, there: Iterable[str] | None = None, *, labels: bool = True
) -> dict[str, str]:
    """Returns the same columns, each with what needs it first, such as "feature 'age'".

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "long", "label": "seconds > age"}]})
        >>> column_uses(config)
        {'age': "feature 'age'", 'seconds': "task 'long'"}
    """
    uses: dict[str, str] = {}
    unread = config.unread_when_scoring
    for feature in config.features:
        only = " of model.bias (to train and to evaluate, not to score)"
        if feature.name not in unread or labels:
            for column in feature.source_columns:
                used_by = f"feature {feature.name!r}{only if feature.name in unread else ''}"
                uses.setdefault(column, used_by)
    if config.model.domains is not None:
        uses.setdefault(config.model.domains.column, "model.domains")
    for task in config.tasks:
        for column in task.inputs:
            uses.setdefault(column, f"task {task.name!r}")
    if config.data.requests is not None and config.data.requests.column is not None:
        uses.setdefault(config.data.requests.column, "data.requests.column")
    for column, used_by in (label_uses(config, there) if labels else {}).items():
        uses.setdefault(column, used_by)
    return uses


def label_uses(config: RunConfig, there: Iterable[str] | None = None) -> dict[str, str]:
    """Returns the columns of labels, weights, groups, times and the split, with what needs each.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "long", "label": "seconds > age"}]})
        >>> label_uses(config)
        {'seconds': "task 'long'", 'age': "task 'long'"}
    """
    uses: dict[str, str] = {}
    known = set(there or ())
    tasks = {task.name for task in config.tasks}
    for task in config.tasks:
        found = _columns(task.label, known, f"task {task.name!r}")
        found += [task.weight_column] if task.weight_column is not None else []
        found += [task.happened_at] if task.happened_at is not None else []
        if task.observed_when is not None and task.observed_when not in tasks:
            found += _columns(task.observed_when, known, f"observed_when of task {task.name!r}")
        for column in found:
            uses.setdefault(column, f"task {task.name!r}")
    if config.model.domains is not None and any(task.domains for task in config.tasks):
        uses.setdefault(config.model.domains.column, "model.domains")
    time = config.data.row_time if config.delayed_tasks else None
    if time is not None and time.column is not None:
        uses.setdefault(time.column, "data.time (for matures_after)")
    if config.data.group_column:
        uses.setdefault(config.data.group_column, "data.group_column")
    if config.compared_group is not None:
        uses.setdefault(config.compared_group, "group of tasks")
    if config.data.split.column:
        uses.setdefault(config.data.split.column, "data.split.column")
    return uses


def text_cells(config: RunConfig) -> TextCells:
    """Returns how a run takes cells of text.

    Columns whose text a feature or the split reads in a way of its own stay text where types are
    inferred: 1.234 may be a thousand, 20231124 a day. Words that mean a missing value are null at
    once in columns of keys; features and labels do so where they read theirs.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> cells = text_cells(config_from_dict({
        ...     "data": {"group_column": "user"},
        ...     "features": [{"kind": "numeric", "name": "price", "thousands": ","}],
        ...     "tasks": [{"name": "click", "label": "click"}]}))
        >>> sorted(cells.as_text), sorted(cells.keys)
        (['price'], ['user'])
    """
    data, split = config.data, config.data.split
    keys = [data.group_column, config.compared_group, split.column if split.by == "hash" else None]
    keys += [] if data.requests is None else [data.requests.column]
    found = {column for feature in config.features for column in feature.text_columns}
    found |= {split.column} if split.column and split.format is not None else set()
    time = config.data.row_time if config.delayed_tasks else None
    if time is not None and time.format is not None:
        found |= {task.happened_at for task in config.tasks if task.happened_at is not None}
        found |= set() if time.column is None else {time.column}
    return TextCells(
        as_text=frozenset(found), words=data.missing_words, keys=frozenset(filter(None, keys))
    )


def with_missing(table: pa.Table, config: RunConfig, origin: str) -> pa.Table:
    """Returns rows in which text that means a missing value is null, where features read it.

    Raises:
        ValueError: A number, datetime or vector is a default word that the run's list lacks.
    """
    data, read = config.data, {column for task in config.tasks for column in task.inputs}
    read |= {column for feature in config.features for column in feature.source_columns}
    read |= {config.model.domains.column} if config.model.domains is not None else set()
    read |= {data.requests.column} if data.requests is not None and data.requests.column else set()
    _refuse_unlisted(table, config, origin)
    return cleaned(table, read, data.missing_words)


def labels_with_missing(table: pa.Table, config: RunConfig) -> pa.Table:
    """Returns rows in which text that means a missing value is null, where labels read it.

    Raises:
        ValueError: A label compares with such a text, or a class is called so.
    """
    words = config.data.missing_words
    if words is None:
        return table
    names = {task.name for task in config.tasks}
    for task in config.tasks:
        for text in (task.label, task.observed_when):
            plain = text is None or text in table.column_names or text in names
            named = [] if plain else [*texts_of(text)]
            named += [name for name in task.outcomes or [] if isinstance(name, str)]
            wrong = next((name for name in named if name.strip() in words), None)
            if wrong is not None:
                raise ValueError(
                    f"task {task.name!r} asks for the text {wrong!r}, but data.missing_words "
                    "names it, so such cells are missing; write is_missing(column), or take it "
                    "out of data.missing_words"
                )
    return cleaned(table, label_uses(config, table.column_names), words)


def _refuse_unlisted(table: pa.Table, config: RunConfig, origin: str) -> None:
    """Readers of numbers and datetimes know the default words, whatever a run's list says."""
    listed = config.data.missing_words
    unlisted = [] if listed is None else sorted({*MISSING_WORDS} - {*listed})
    for feature in config.features if unlisted else ():
        own = feature.missing_texts
        if own is None:
            continue
        for name in feature.source_columns:
            found = first_word(table, name, [word for word in unlisted if word not in own])
            if found is not None:
                raise ValueError(
                    f"{place(table, origin, found)}: column {name!r} (of feature "
                    f"{feature.name!r}) is {table[name][found].as_py()!r}, which "
                    "data.missing_words does not name; add it there, or mend the cell"
                )


def _columns(text: str, there: set[str], used_by: str) -> list[str]:
    try:
        return [text] if text in there else list(columns_of(text))
    except ValueError as error:
        raise ValueError(f"{used_by}: {error}") from None
