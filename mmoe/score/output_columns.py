"""Predictions as the columns that a user gets: numbers, and classes by their own names."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mmoe.config.tasks import TaskConfig, prediction_columns


def output_columns(
    predictions_NP: np.ndarray, tasks: Sequence[TaskConfig]
) -> dict[str, np.ndarray]:
    """Names the columns of predictions, and writes those of classes as the classes.

    Args:
        predictions_NP: As `Predictor.predict` returns them.
        tasks: Of the run.

    Returns:
        Name → float32 [N], or the classes: int64 or text.

    Example:
        >>> click = TaskConfig(name="click", label="click")
        >>> output_columns(np.array([[0.25]], np.float32), [click])
        {'pred_click': array([0.25], dtype=float32)}
    """
    names = prediction_columns(tasks)
    columns = [np.ascontiguousarray(predictions_NP[:, p]) for p in range(len(names))]
    for t, task in enumerate(tasks):
        if task.outcomes is not None:
            columns[t] = np.array(task.outcomes)[columns[t].astype(np.int64)]
    return dict(zip(names, columns, strict=True))


def output_schema(tasks: Sequence[TaskConfig]) -> pa.Schema:
    """Returns names and types of the same columns in Arrow.

    Example:
        >>> output_schema([TaskConfig(name="click", label="click")]).types
        [DataType(float)]
    """
    types = dict.fromkeys(prediction_columns(tasks), pa.float32())
    for task in tasks:
        if task.outcomes is not None:
            types[f"pred_{task.name}"] = pa.array(task.outcomes).type
    return pa.schema(list(types.items()))
