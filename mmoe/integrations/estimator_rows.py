"""X, y and weights of an estimator, in whatever form they come: Arrow tables to train on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.sparse import issparse
from sklearn.utils.validation import check_array

from mmoe.config import RunConfig
from mmoe.datasets import Splits
from mmoe.datasets.rows.frames import as_table, describe_mixed, is_row_dicts, plain_rows
from mmoe.datasets.rows.locations import ROW_COLUMN, number_rows
from mmoe.datasets.rows.projection import text_cells
from mmoe.datasets.rows.requests import find_requests
from mmoe.datasets.values.columns import to_numbers
from mmoe.errors import warn_caller

Callback = Callable[[int, Mapping[str, Any]], bool | None]
WEIGHT = "sample_weight"
_SHOWN = 3  # values of an index, in an error message


@dataclass(frozen=True, kw_only=True)
class Rows:
    """N rows of columns.

    Attributes:
        table: Their columns.
        index: Of pandas; None where rows have none.
        named: Columns have names of their own; those of an array are x0, x1, ….
        mixed: Columns of numbers and texts, which were read as text.
    """

    table: pa.Table
    index: pd.Index | None
    named: bool
    mixed: Sequence[str] = ()

    def __len__(self) -> int:
        return self.table.num_rows

    def warn_of_mixed(self, known: Sequence[str] = ()) -> None:
        """Warns of columns that were read as text, but for those that are known to be."""
        new = [name for name in self.mixed if name not in known]
        if new:
            warn_caller(describe_mixed(new))

    def out(self, columns: Mapping[str, Any]) -> pd.DataFrame:
        """Makes the answer: a DataFrame with the rows' index."""
        return pd.DataFrame(dict(columns), index=self.index)


def feature_rows(
    X: Any, *, needed: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> Rows:
    """Reads X.

    Args:
        X: A DataFrame of pandas or polars, an Arrow table, a mapping of names to columns, a list of
            dicts, or an array of two dimensions.
        needed: Columns that are used: another one that cannot be read is left out; None: all are.
        names: What the columns of an array are called; None: x0, x1, ….

    Raises:
        ValueError: It is none of these, holds no rows, or a column cannot be read.
    """
    if isinstance(X, Rows):
        return X
    index = X.index if isinstance(X, pd.DataFrame) else None
    named = _has_names(X)
    if not named:
        X = _columns_of_array(X, names)
    mixed: list[str] = []
    used = None if needed is None else (lambda _: needed)
    table = as_table(plain_rows(X), used, origin="X", mixed=mixed)
    return Rows(table=_visible(table), index=index, named=named, mixed=mixed)


def label_rows(y: Any, features: Rows) -> pa.Table | None:
    """Reads y as named columns, its rows in the order of X: by their index, where both have one.

    A Series' column is called by its name; those of arrays are label, or label_0, label_1, ….

    Raises:
        ValueError: Its rows are not those of X.
    """
    if y is None:
        return None
    index = y.index if isinstance(y, pd.DataFrame | pd.Series) else None
    table = _visible(as_table(_label_columns(y), origin="y"))
    return in_order_of_X(table, index, features, "y")


def refuse_times(labels: pa.Table) -> None:
    """Refuses labels that are moments or spans of time, which no task learns.

    Raises:
        ValueError: Names the column.
    """
    for field in labels.schema:
        if pa.types.is_temporal(field.type):
            raise ValueError(
                f"y: column {field.name!r} holds {field.type}, expected 0 and 1, two values, or "
                "numbers; make it a number first, such as hours since a moment: "
                '(y - y.min()) / pd.Timedelta("1h")'
            )


def weight_column(sample_weight: Any, features: Rows) -> np.ndarray | None:
    """Reads weights, one for each row of X, float64 [N]; rows by their index, as those of y.

    Raises:
        ValueError: They are not one number of 0 or more for each row.
    """
    if sample_weight is None:
        return None
    index = sample_weight.index if isinstance(sample_weight, pd.Series) else None
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight: expected one number a row: {error}") from None
    if weights.ndim != 1:
        raise ValueError(f"sample_weight: expected one number a row, got shape {weights.shape}")
    table = in_order_of_X(pa.table({WEIGHT: weights}), index, features, WEIGHT)
    weights = table[WEIGHT].to_numpy()
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"sample_weight: row {row + 1} is {weights[row]}, expected a finite number of 0 or more"
        )
    if not weights.any():
        raise ValueError("sample_weight: every weight is zero, so nothing would be learnt")
    return weights


def joined(features: Rows, labels: pa.Table | None) -> pa.Table:
    """Returns one table of both, whose rows are named X: row 17.

    Raises:
        ValueError: X holds a column of y.
    """
    table = features.table
    for name in [] if labels is None else labels.column_names:
        if name in table.column_names:
            raise ValueError(
                f"X: holds the label column {name!r} as well as y; drop it from X, or the model "
                "would see what it has to predict"
            )
        assert labels is not None
        table = table.append_column(name, labels[name])
    return number_rows(table, [("X", table.num_rows)])


def in_order_of_X(table: pa.Table, index: pd.Index | None, features: Rows, what: str) -> pa.Table:
    """Returns the rows of a table, which has this index, in the order of those of X.

    Raises:
        ValueError: They are more, or fewer, or others.
    """
    if table.num_rows != len(features):
        raise ValueError(
            f"{what}: expected {len(features)} rows, as many as X, got {table.num_rows}"
        )
    if index is None or features.index is None or index.equals(features.index):
        return table
    mend = f"give both one index, or {what}.to_numpy() to take its rows as they stand"
    if not (index.is_unique and features.index.is_unique):
        raise ValueError(
            f"{what}: its index is not that of X, and values stand in it more than once, so rows "
            f"cannot be matched; {mend}"
        )
    places = index.get_indexer(features.index)
    if (places < 0).any():
        mine = index.difference(features.index, sort=False)
        raise ValueError(
            f"{what}: its index is not that of X: {_some(features.index[places < 0])} of X "
            f"are not in {what}, {_some(mine)} of {what} not in X; {mend}"
        )
    return table.take(pa.array(places))


def _some(values: pd.Index) -> str:
    shown = ", ".join(repr(value) for value in values[:_SHOWN].tolist())
    return f"{shown}, … ({len(values):,} in all)" if len(values) > _SHOWN else shown


def _has_names(X: Any) -> bool:
    if issparse(X) or isinstance(X, pd.Series):  # one of those is a mapping, this is a stream
        return False
    if isinstance(X, Mapping | pa.Table | pa.RecordBatch) or (is_row_dicts(X) and len(X) > 0):
        return True
    return hasattr(X, "__arrow_c_stream__") or hasattr(X, "__dataframe__")


def _columns_of_array(X: Any, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Columns of anything that NumPy makes an array of two dimensions."""
    if X is None or isinstance(X, str | int | float):
        raise ValueError(
            "X: expected a DataFrame, an Arrow table, a list of dicts or an array of two "
            f"dimensions, got {str(X)[:80]!r}"
        )
    any_type: Any = None
    array = check_array(X, dtype=any_type, ensure_all_finite=False, input_name="X")
    if names is not None and len(names) != array.shape[1]:
        raise ValueError(
            f"X has {array.shape[1]} features, but MultiTaskRanker is expecting {len(names)} "
            "features as input"
        )
    names = [f"x{i}" for i in range(array.shape[1])] if names is None else names
    return {name: array[:, i] for i, name in enumerate(names)}


def _label_columns(y: Any) -> Any:
    """Returns names and columns, as `as_table` takes them."""
    if isinstance(y, pd.DataFrame | Mapping | pa.Table | pa.RecordBatch) or is_row_dicts(y):
        return plain_rows(y)
    if isinstance(y, pd.Series):
        return {str("label" if y.name is None else y.name): y}
    if isinstance(y, pa.Array | pa.ChunkedArray):
        return pa.table({"label": y})
    if hasattr(y, "__arrow_c_stream__"):
        try:
            return pa.table(y)
        except (pa.ArrowException, TypeError):  # one column, such as a Series of polars
            return pa.table({str(getattr(y, "name", None) or "label"): pa.chunked_array(y)})
    array = np.asarray(y)
    if array.ndim == 1:
        return {"label": array}
    if array.ndim != 2:
        raise ValueError(f"y: expected a column for each label, got shape {array.shape}")
    return {f"label_{i}": array[:, i] for i in range(array.shape[1])}


def _visible(table: pa.Table) -> pa.Table:
    return table.drop_columns([ROW_COLUMN]) if ROW_COLUMN in table.column_names else table


class RowWeights:
    """`sample_weight` as weight columns of the tasks: times the one that a task has already.

    Args:
        config: Of the run, without them.
        taken: Names of columns that there are.
    """

    def __init__(self, config: RunConfig, taken: list[str]) -> None:
        self.before = {task.name: task.weight_column for task in config.tasks}
        self.columns = {name: _free(column, taken) for name, column in self.before.items()}
        self.config = with_weight_columns(config, self.columns)

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


def with_weight_columns(config: RunConfig, columns: Mapping[str, str | None]) -> RunConfig:
    """Returns the config whose tasks have these weight columns."""
    tasks = [
        task.model_copy(update={"weight_column": columns.get(task.name, task.weight_column)})
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
    requests = config.data.requests
    found = None if requests is None else find_requests(requests, table, "X")
    total = table.num_rows if found is None else len(found.first_M)
    order = np.random.default_rng(config.split_seed).permutation(total)
    count = min(max(1, round(total * share)), total - 1)
    if found is None:
        return table.take(order[count:]), table.take(order[:count])
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
