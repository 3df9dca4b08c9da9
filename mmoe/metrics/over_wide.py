"""Gain of a model over its wide part on the same rows, with its paired interval."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mmoe.metrics.columns import finer, interval_cells
from mmoe.metrics.differences import paired_difference
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.row_terms import row_terms
from mmoe.metrics.task_kinds.base import TaskKind


def gain_over_wide(
    kind: TaskKind, model: float, wide: float, of_model: ObservedRows, of_wide: ObservedRows
) -> dict[str, Any]:
    """Measures by how much a model is better at one task than its wide part.

    Args:
        kind: Of the task; its headline is what counts.
        model: The headline of the model.
        wide: That of the wide part alone.
        of_model: Rows on which the task is judged, as the model predicts them.
        of_wide: The same as the wide part does.

    Returns:
        The metric, both values, and the gain: `value`, above 0 where the model is better, with its
        95 % interval from `low` to `high` (paired, DeLong's for AUC); None where rows are too few.
    """
    column, better = kind.column(kind.headline), 1 if kind.monitored[kind.headline] else -1
    terms = (row_terms(kind.headline, rows) for rows in (of_model, of_wide))
    gain = paired_difference(np.array([better * model]), np.array([better * wide]), *terms)
    form = column.form.replace("{:.4g}", "{:#.4g}")  # 8.000 beside 5.544
    named = {"metric": kind.headline, "heading": column.heading, "form": form}
    ends = {"value": gain.value, "low": gain.low, "high": gain.high}
    return {**named, "model": model, "wide": wide, **ends}


GAIN_HEADINGS = ("task", "metric", "wide part alone", "with the mixture", "gain", "95 % interval")


def gain_rows(over_wide: Mapping[str, Any]) -> list[list[str]]:
    """Returns a row of text for each task, below `GAIN_HEADINGS`.

    Args:
        over_wide: As metrics.json has it.

    Example:
        >>> gain = {"heading": "AUC", "form": "{:.4f}", "model": 0.81, "wide": 0.8, "value": 0.01,
        ...         "low": 0.002, "high": 0.018}
        >>> gain_rows({"tasks": {"click": gain}})
        [['click', 'AUC', '0.8000', '0.8100', '+0.01000', '+0.00200 to +0.01800']]
    """
    return [
        [
            task,
            one["heading"],
            one["form"].format(one["wide"]),
            one["form"].format(one["model"]),
            *interval_cells(one, finer(one["form"])),
        ]
        for task, one in over_wide["tasks"].items()
    ]
