"""Finds columns that foretell a label too well to be inputs."""

import numpy as np
import pyarrow as pa

from mmoe.datasets.infer.guess_tasks import GuessedTask
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.keys import codes_of
from mmoe.datasets.values.plain import plain

_LOOKED_AT = 200_000  # rows on which a column is tried against a label
_TOO_GOOD = 0.99  # single-feature AUC
_SMOOTHING = 1.0  # rows of the base rate added to each category
_SURE = 3.3  # standard errors above chance: few rows reach any AUC by luck
_UNLIKELY = 1e-6


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
        if value > _TOO_GOOD:
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
    left, right = (_mid_ranks(values[both_N]) for values in (task.values_N, numbers_N))
    if left.min() == left.max() or right.min() == right.max():
        return False
    return bool(abs(np.corrcoef(left, right)[0, 1]) > 0.999)


def auc(scores_N: np.ndarray, labels_N: np.ndarray) -> float:
    """Returns the AUC, ties counting half; NaN with one class.

    Example:
        >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
        0.875
    """
    positive = labels_N > 0.5
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    wins = _mid_ranks(scores_N)[positive].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def _mid_ranks(values_N: np.ndarray) -> np.ndarray:
    """Returns ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _single_feature_auc(
    profile: ColumnProfile, column: pa.ChunkedArray, labels_N: np.ndarray
) -> float:
    """Returns a column's own AUC, of either sign: by order, or by rates per value.

    Rates per value come from the other half of the rows, so that ids seen once say nothing. Whether
    a value is there at all counts as well.

    Returns:
        0.5 to 1; 0.5 where there are too few rows to tell.
    """
    positives = labels_N.sum()
    negatives = len(labels_N) - positives
    if min(positives, negatives) < 5:
        return 0.5
    error = np.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    if (_TOO_GOOD - 0.5) / error < _SURE:
        return 0.5
    if profile.nature in ("list", "vector", "other"):
        return 0.5
    present_N = pc.is_valid(column).to_numpy().astype(np.float64)
    scores = [present_N, _rate_per_value(column, labels_N)]
    if profile.numbers_N is not None:
        numbers_N = profile.numbers_N
        lowest = np.nanmin(numbers_N) if not np.isnan(numbers_N).all() else 0.0
        scores += [np.nan_to_num(numbers_N, nan=lowest - 1)]
    values = [auc(score_N, labels_N) for score_N in scores]
    return max(max(value, 1 - value) for value in values)


def _implies_label(profile: ColumnProfile, labels_N: np.ndarray) -> bool:
    """Returns whether the label is 1 wherever the column is not 0: likely known afterwards."""
    if profile.numbers_N is None:
        return False
    nonzero_N = np.nan_to_num(profile.numbers_N) != 0
    rows = int(nonzero_N.sum())
    rate = float(labels_N.mean()) if len(labels_N) else 1.0
    return bool(
        0 < rows < len(labels_N) / 2
        and labels_N[nonzero_N].all()
        and rate < 0.5
        and rate**rows < _UNLIKELY
    )


def _rate_per_value(column: pa.ChunkedArray, labels_N: np.ndarray) -> np.ndarray:
    """Positive rate of a row's value in the other half of the rows."""
    codes_N, size = codes_of(plain(column))
    half_N = (mix64(np.arange(len(codes_N), dtype=np.uint64)) & np.uint64(1)).astype(bool)
    base = labels_N.mean()
    size += 1  # missing has code −1, the last one
    codes_N = codes_N % size
    scores_N = np.empty(len(codes_N))
    for half in (False, True):
        there = half_N != half
        count = np.bincount(codes_N[there], minlength=size)
        total = np.bincount(codes_N[there], weights=labels_N[there], minlength=size)
        rate = (total + base * _SMOOTHING) / (count + _SMOOTHING)
        scores_N[half_N == half] = rate[codes_N[half_N == half]]
    return scores_N
