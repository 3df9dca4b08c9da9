"""Finds columns that foretell a label too well to be inputs."""

import numpy as np
import pyarrow as pa

from mmoe.datasets.infer.guess_tasks import GuessedTask
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.keys import codes_of
from mmoe.datasets.values.plain import plain
from mmoe.metrics.one_column import (
    SURE,
    TOO_GOOD,
    auc_by_order,
    auc_by_rates,
    enough_to_tell,
    implies_label,
    same_order,
)

_LOOKED_AT = 200_000  # rows on which a column is tried against a label


def too_good(
    table: pa.Table, tasks: list[GuessedTask], samples: list[np.ndarray], profile: ColumnProfile
) -> str | None:
    """Says why a column gives a label away (known only after the event, or the label), or None.

    Args:
        table: All rows.
        tasks: The labels.
        samples: For each task, the rows to look at.
        profile: The column.
    """
    for task, rows in zip(tasks, samples, strict=True):
        if not task.is_event:
            if profile.numbers_N is not None and _same_order(task, profile.numbers_N):
                return f"it orders the rows as the label {task.task.name!r} does"
            continue
        labels_N = task.values_N[rows]
        part = profile.take(rows)
        value = _single_feature_auc(part, table[profile.name].take(pa.array(rows)), labels_N)
        if value > TOO_GOOD:
            return f"alone it foretells {task.task.name!r} with AUC {value:.4f}"
        if _implies_label(part, labels_N):
            return (
                f"{task.task.name!r} is 1 in every row where it is not 0, so it seems to be known "
                "only afterwards; add it if it is not"
            )
    return None


def sample_rows(rows: np.ndarray) -> np.ndarray:
    """Samples about _LOOKED_AT of the rows, the same ones every time, in order."""
    if len(rows) <= _LOOKED_AT:
        return rows
    return rows[mix64(rows) < np.uint64(2**64 // len(rows) * _LOOKED_AT)]


def _same_order(task: GuessedTask, numbers_N: np.ndarray) -> bool:
    both_N = task.observed_N & np.isfinite(numbers_N)
    if both_N.sum() < 20:
        return False
    return abs(same_order(task.values_N[both_N], numbers_N[both_N])) > 0.999


def _single_feature_auc(
    profile: ColumnProfile, column: pa.ChunkedArray, labels_N: np.ndarray
) -> float:
    """Returns a column's own AUC, of either sign: by order, or by rates per value.

    Rates per value come from the other half of the rows, so that ids seen once say nothing. Whether
    a value is there at all counts as well.

    Returns:
        0.5 to 1; 0.5 where there are too few rows to tell.
    """
    positives = int(labels_N.sum())
    if not enough_to_tell(positives, len(labels_N) - positives, TOO_GOOD, SURE):
        return 0.5
    if profile.nature in ("list", "vector", "other"):
        return 0.5
    codes_N, size = codes_of(plain(column))
    codes_N = codes_N % (size + 1)  # missing has code −1, the last one
    values = [
        auc_by_order((codes_N < size).astype(np.int64), 2, labels_N),
        auc_by_rates(codes_N, size + 1, labels_N, halves(len(codes_N))),
    ]
    if profile.numbers_N is not None:
        # NaN comes last among the values, and first in the order: the AUC is that of either sign
        distinct, ranks_N = np.unique(profile.numbers_N, return_inverse=True)
        ranks_N = np.where(np.isnan(profile.numbers_N), 0, ranks_N + 1)
        values.append(auc_by_order(ranks_N, len(distinct) + 1, labels_N))
    return max(max(value, 1 - value) for value in values)


def halves(rows: int) -> np.ndarray:
    """Returns which half each of so many rows belongs to, bool, the same ones every time."""
    return (mix64(np.arange(rows, dtype=np.uint64)) & np.uint64(1)).astype(bool)


def _implies_label(profile: ColumnProfile, labels_N: np.ndarray) -> bool:
    """Returns whether the label is 1 wherever the column is not 0: likely known afterwards."""
    if profile.numbers_N is None:
        return False
    return implies_label(np.nan_to_num(profile.numbers_N) != 0, labels_N)
