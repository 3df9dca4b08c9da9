"""Copies of training rows among the test rows: what they do to the metrics."""

from collections.abc import Sequence

import numpy as np

from mmoe.alarms import Alarm, Effect, repeated_rows
from mmoe.config import RunConfig
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.repeats import Repeats
from mmoe.metrics.task_kinds import kind_of
from mmoe.train.measure import metrics_of


def alarm_of_copies(repeats: Repeats | None, config: RunConfig) -> Sequence[Alarm]:
    """Returns what is said of rows in several splits, before there are predictions."""
    if repeats is None or not repeats.unusual:
        return []
    found = repeated_rows(repeats.validation, repeats.test, by_file=_by_file(config))
    return [] if found is None else [found]


def with_effects(
    alarms: Sequence[Alarm],
    repeats: Repeats | None,
    config: RunConfig,
    predictions_NP: np.ndarray,
    labels: EncodedLabels,
) -> list[Alarm]:
    """Returns the alarms, that of copies with metrics on all test rows and on the others.

    Args:
        alarms: Of a run.
        repeats: What was counted of its rows; None: it goes on with another, which has counted.
        config: Of the run.
        predictions_NP: Of all test rows.
        labels: Of all test rows.
    """
    if repeats is None or all(alarm.kind != "repeated_rows" for alarm in alarms):
        return list(alarms)
    rows, others = repeats.test_rows_S, repeats.test_rows_S[~repeats.copied_S]
    of_all, of_others = (
        metrics_of(config, predictions_NP[some], labels.taken(some), intervals=False)[0]
        if len(some)
        else {}
        for some in (rows, others)
    )
    effects = []
    for task in config.tasks:
        key = kind_of(task.kind).headline
        heading = kind_of(task.kind).column(key).heading
        one, other = (found.get(task.name, {}).get(key) for found in (of_all, of_others))
        if one is not None and other is not None:
            effects.append(Effect(task.name, heading, one, other))
    found = repeated_rows(repeats.validation, repeats.test, effects, by_file=_by_file(config))
    return [found if a.kind == "repeated_rows" and found else a for a in alarms]


def _by_file(config: RunConfig) -> bool:
    return config.data.split.by == "file"
