"""Which columns a run needs: only these are read."""

from collections.abc import Iterable

from mmoe.config import RunConfig
from mmoe.datasets.formula import columns_of


def required_columns(
    config: RunConfig, there: Iterable[str] | None = None, *, labels: bool = True
) -> list[str]:
    """The columns that features need, and with `labels` those of tasks, groups and the split.

    Args:
        config: The run.
        there: The columns of the data, if known: a label that is one of them is that column, even
            if it could be read as an expression (`a-b`).
        labels: False when only scores are wanted.

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
    columns = [feature.source_column for feature in config.features]
    if labels:
        known = set(there or ())
        tasks = {task.name for task in config.tasks}
        for task in config.tasks:
            columns += _columns(task.label, known)
            if task.weight_column is not None:
                columns.append(task.weight_column)
            if task.observed_when is not None and task.observed_when not in tasks:
                columns += _columns(task.observed_when, known)
        columns += [config.data.group_column] if config.data.group_column else []
        columns += [config.data.split.column] if config.data.split.column else []
    return list(dict.fromkeys(columns))


def _columns(text: str, there: set[str]) -> list[str]:
    return [text] if text in there else columns_of(text)
