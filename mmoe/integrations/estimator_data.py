"""What an estimator trains on: weights of rows, and the rows that choose the best epoch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.rows.projection import text_cells
from mmoe.datasets.rows.requests import find_requests
from mmoe.datasets.rows.splits import Splits
from mmoe.datasets.values.columns import to_numbers
from mmoe.integrations.estimator_rows import WEIGHT, feature_rows, joined, label_rows, weight_column

Callback = Callable[[int, Mapping[str, Any]], bool | None]


class RowWeights:
    """`sample_weight` as weight columns of the tasks: times the one that a task has already.

    Args:
        config: Of the run, without them.
        taken: Names of columns that there are.
    """

    def __init__(self, config: RunConfig, taken: list[str]) -> None:
        self.before = {task.name: task.weight_column for task in config.tasks}
        self.columns = {name: _free(column, taken) for name, column in self.before.items()}
        tasks = [
            task.model_copy(update={"weight_column": self.columns[task.name]})
            for task in config.tasks
        ]
        self.config = config.model_copy(update={"tasks": tasks})

    def added(self, table: pa.Table, weights_N: np.ndarray | None) -> pa.Table:
        """Returns the table with the weight columns; None: every row has weight 1."""
        weights_N = np.ones(table.num_rows) if weights_N is None else weights_N
        for task, column in self.columns.items():
            own, values_N = self.before[task], weights_N
            if own is not None:
                used_by = f"weight_column of task {task!r}"
                values_N = weights_N * to_numbers(table, own, "X", used_by)
            if column not in table.column_names:
                table = table.append_column(column, pa.array(values_N, from_pandas=True))
        return table


def without_weights(config: RunConfig, before: Mapping[str, str | None]) -> RunConfig:
    """Returns a config with the weight columns that tasks had before those of `RowWeights`."""
    tasks = [
        task.model_copy(update={"weight_column": before.get(task.name, task.weight_column)})
        for task in config.tasks
    ]
    return config.model_copy(update={"tasks": tasks})


def training_rows(
    config: RunConfig,
    table: pa.Table,
    validation: pa.Table | None,
    weights_N: np.ndarray | None,
    share: Any,
) -> tuple[RunConfig, Splits, dict[str, str | None]]:
    """Makes the splits of a run.

    Args:
        config: Of the run.
        table: X and y.
        validation: Rows that choose the best epoch; None: a share of the others.
        weights_N: Of the table's rows; None: all count alike.
        share: Of the rows, where validation rows are not given.

    Returns:
        The config, with weight columns where there are weights; the splits; and the weight columns
        that tasks had before, where others have taken their place.

    Raises:
        ValueError: The share is none.
    """
    before: dict[str, str | None] = {}
    if weights_N is not None:
        weights = RowWeights(config, table.column_names)
        config, before = weights.config, weights.before
        table = weights.added(table, weights_N)
        validation = None if validation is None else weights.added(validation, None)
    if validation is None:
        table, validation = _held_out(table, share, config)
    splits = Splits(train=table, validation=validation, test=validation, origin="X")
    return config, splits, before


def _held_out(table: pa.Table, share: Any, config: RunConfig) -> tuple[pa.Table, pa.Table]:
    """Rows to train on and a share of them, at least one, held out; requests as a whole."""
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ValueError(f"validation: expected a share between 0 and 1, got {share!r}")
    table = text_cells(config).cleaned(table)
    draw, requests = np.random.default_rng(config.split_seed), config.data.requests
    if requests is None:
        order = draw.permutation(table.num_rows)
        count = min(max(1, round(table.num_rows * share)), table.num_rows - 1)
        return table.take(order[count:]), table.take(order[:count])
    found = find_requests(requests, table, "X")
    order = draw.permutation(len(found.first_M))
    count = min(max(1, round(len(order) * share)), len(order) - 1)
    held_N = np.isin(found.request_N, order[:count])
    return table.filter(pa.array(~held_N)), table.filter(pa.array(held_N))


def validation_rows(eval_set: Any, names: list[str]) -> pa.Table | None:
    """Reads `eval_set`, one pair of X and y; None where there is none.

    Args:
        eval_set: As given to `fit`.
        names: The columns of X, for an X that is an array.

    Raises:
        ValueError: It is no such list.
    """
    if eval_set is None:
        return None
    pair = eval_pair(eval_set)
    if pair is None:
        raise ValueError(
            "eval_set: expected (X, y) or [(X, y)], one pair whose rows choose the best epoch, got "
            f"{_described(eval_set)}"
        )
    X, y = pair
    try:
        features = feature_rows(X, names=names)
        return joined(features, label_rows(y, features))
    except ValueError as error:
        raise ValueError(f"eval_set: {error}") from None


def eval_pair(eval_set: Any) -> tuple[Any, Any] | None:
    """Returns X and y of `(X, y)` or `[(X, y)]`; None where it is neither.

    Example:
        >>> eval_pair(("X", "y")), eval_pair([("X", "y")]), eval_pair([("X", "y")] * 2)
        (('X', 'y'), ('X', 'y'), None)
    """
    if isinstance(eval_set, list | tuple) and len(eval_set) == 1:
        eval_set = eval_set[0]
    elif not isinstance(eval_set, tuple) or any(isinstance(part, tuple) for part in eval_set):
        return None  # two pairs, or no pair
    if not isinstance(eval_set, list | tuple) or len(eval_set) != 2:
        return None
    return eval_set[0], eval_set[1]


def _described(eval_set: Any) -> str:
    kind = type(eval_set).__name__
    return f"{kind} of {len(eval_set)}" if isinstance(eval_set, list | tuple) else kind


def _free(own: str | None, taken: list[str]) -> str:
    name = WEIGHT if own is None else f"{WEIGHT} x {own}"
    while name in taken:
        name = f"{name}_"
    return name


def one_callback(callbacks: Any) -> Callback | None:
    """Makes one callback that calls all, and stops where one of them says so.

    Raises:
        ValueError: One is no function.
    """
    given = [callbacks] if callable(callbacks) else list(callbacks or ())
    for callback in given:
        if not callable(callback):
            raise ValueError(
                f"callbacks: expected functions of epoch and metrics, got {callback!r}"
            )
    if not given:
        return None
    return lambda epoch, metrics: any([callback(epoch, metrics) is True for callback in given])


def judged_rows(
    config: RunConfig, names: Sequence[str], X: Any, y: Any, sample_weight: Any
) -> tuple[RunConfig, pa.Table]:
    """Reads rows with labels, and weights where there are any.

    Args:
        config: Of the run, with the weight columns it would have without `sample_weight`.
        names: The columns of X, for an X that is an array.
        X: As for `fit`.
        y: Likewise.
        sample_weight: Likewise.

    Returns:
        The config that these rows are judged by, and their table.
    """
    features = feature_rows(X, names=names)
    table = joined(features, label_rows(y, features))
    weights = weight_column(sample_weight, features)
    if weights is None:
        return config, table
    row_weights = RowWeights(config, table.column_names)
    return row_weights.config, row_weights.added(table, weights)
