"""Fits the delays of events to training rows, for tasks with `immature: weight`."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, TaskConfig
from mmoe.config.data import microseconds
from mmoe.datasets.labels.delays import DelayFit
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.labels.maturity import Maturity, delays_of
from mmoe.datasets.labels.times import MISSING
from mmoe.datasets.rows.locations import place

_LATER = Maturity(as_of=2**62)  # than any window: labels as the data has them


def with_curves(
    config: RunConfig, maturity: Maturity, training: Iterable[pa.Table], origin: str
) -> Maturity:
    """Returns the same with a curve for each task with `immature: weight`.

    Where tasks may be left as they are (`maturity.leaves_young`), one of too few events gets none,
    and its young rows are masked.

    Args:
        config: Of the run.
        maturity: When the labels were collected.
        training: Training rows, in chunks; not read where no task needs them.
        origin: What the user calls them.

    Raises:
        ValueError: A positive label has no time of its event, one is before its row, or too few
            are known.
    """
    tasks = [
        (t, task, DelayFit(microseconds(task.matures_after)))
        for t, task in enumerate(config.tasks)
        if task.immature == "weight" and task.matures_after is not None
    ]
    for table in training if tasks else ():
        labels = encode_labels(config, table, origin, maturity=_LATER)
        ages_N = maturity.ages(table, config, origin)
        for t, task, fit in tasks:
            delays_N = delays_of(task, maturity, ages_N, table, config, origin)
            event_N = labels.observed_NT[:, t] & (labels.labels_NT[:, t] == 1)
            _refuse_untimed(task, event_N & (delays_N == MISSING), table, origin)
            known_N = event_N & (delays_N <= ages_N)
            fit.add(delays_N[known_N], ages_N[known_N])
    curves = {
        task.name: fit.finish(origin, task.name)
        for _, task, fit in tasks
        if fit.is_enough or not maturity.leaves_young
    }
    return replace(maturity, curves=curves)


def _refuse_untimed(task: TaskConfig, wrong_N: np.ndarray, table: pa.Table, origin: str) -> None:
    if wrong_N.any():
        raise ValueError(
            f"{place(table, origin, int(wrong_N.argmax()))}: column {task.happened_at!r} "
            f"(happened_at of task {task.name!r}) is empty, but the label is 1; give the event's "
            "time, or set immature: mask"
        )
