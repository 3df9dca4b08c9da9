"""A small additive model of many columns: what crosses must add to, and splits are compared by."""

from collections.abc import Mapping, Sequence

import numpy as np

from mmoe.datasets.features.fit_numbers import bucket_edges
from mmoe.datasets.infer.measured.coded import Coded

_PASSES = 2  # over the columns; a third changes AUCs by less than 0.001
_BUCKETS = 30  # of a column of numbers
_RIDGE = 4.0  # in units of a row's information


def levels(coded: Coded, is_number: bool) -> tuple[np.ndarray, int]:
    """Returns the level of each row, of ids their value, of numbers their bucket; and how many.

    Returns:
        int64 [S], and the number of levels with that of missing values.
    """
    if not is_number or coded.values_V is None or coded.size <= _BUCKETS:
        return coded.codes_S, coded.cells
    counts_V = np.bincount(coded.codes_S, minlength=coded.cells)[:-1]
    edges = bucket_edges(coded.values_V, counts_V, _BUCKETS)
    bucket_V = np.append(np.searchsorted(edges, coded.values_V), len(edges) + 1)
    return bucket_V[coded.codes_S], len(edges) + 2


def additive(
    columns: Sequence[tuple[np.ndarray, int]],
    labels_L: np.ndarray,
    training_L: np.ndarray,
    is_event: bool,
) -> np.ndarray:
    """Fits a logistic (or linear) additive model to some rows, and predicts all: float64 [L].

    Newton's steps, a column at a time, drawn to 0.

    Args:
        columns: For each its levels, int64 [L], and how many there are.
        labels_L: Labels, float64.
        training_L: Which rows to learn from, bool.
        is_event: Whether labels are 0 and 1.

    Returns:
        Probabilities of events, else values.
    """
    base = float(labels_L[training_L].mean())
    base = min(max(base, 1e-6), 1 - 1e-6) if is_event else base
    scores_L = np.full(len(labels_L), np.log(base / (1 - base)) if is_event else base)
    index = np.flatnonzero(training_L)
    labels, chosen = labels_L[index], [codes_L[index] for codes_L, _ in columns]
    weights = [np.zeros(size) for _, size in columns]
    scores = scores_L[index]
    for _ in range(_PASSES):
        for codes, weight in zip(chosen, weights, strict=True):
            p = 1 / (1 + np.exp(-scores)) if is_event else scores
            information = p * (1 - p) if is_event else None
            slope = np.bincount(codes, weights=labels - p, minlength=len(weight)) - _RIDGE * weight
            curve = np.bincount(codes, weights=information, minlength=len(weight)) + _RIDGE
            step = np.clip(slope / curve, -3, 3)
            weight += step
            scores += step[codes]
    for (codes_L, _), weight in zip(columns, weights, strict=True):
        scores_L += weight[codes_L]
    return 1 / (1 + np.exp(-scores_L)) if is_event else scores_L


def of_both_halves(
    columns: Mapping[str, tuple[np.ndarray, int]],
    labels_L: np.ndarray,
    half_L: np.ndarray,
    is_event: bool,
) -> np.ndarray:
    """Predicts each half by a model of the other: float64 [L]."""
    found = list(columns.values())
    first_L = additive(found, labels_L, ~half_L, is_event)
    return np.where(half_L, first_L, additive(found, labels_L, half_L, is_event))
