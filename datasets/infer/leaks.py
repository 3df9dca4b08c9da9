"""Finds columns that predict a label too well to be inputs."""

import numpy as np

from mmoe.datasets.infer.measured.coded import Coded, Sample, Target
from mmoe.datasets.infer.measured.evidence import UNREPEATED
from mmoe.datasets.infer.measured.readings import Sums, as_ids, auc_of_sums, held_out_auc
from mmoe.metrics.one_column import (
    SMOOTHING,
    SURE,
    TOO_GOOD,
    UNLIKELY,
    enough_to_tell,
    same_order,
)

_SAME_ORDER = 0.999  # rank correlation with a label of numbers


def too_good(coded: Coded, sample: Sample) -> str | None:
    """Says why a column gives a label away (known only after the event, or the label), or None.

    Args:
        coded: The column in the sampled rows.
        sample: These rows, and the labels there.
    """
    for target in sample.targets:
        codes_L = coded.codes_S[target.index_L]
        if not target.is_event:
            if coded.values_V is not None and _same_order(codes_L, coded.size, target.raw_L):
                return f"it orders the rows as the label {target.task!r} does"
            continue
        sums = Sums.of(codes_L, coded.cells, target.raw_L, sample.folds_S[target.index_L])
        value = _single_feature_auc(sums, coded)
        if value > TOO_GOOD:
            return f"alone it predicts {target.task!r} with AUC {value:.4f}"
        if _implies_label(sums, coded, target):
            return (
                f"{target.task!r} is 1 in every row where it is not 0, so it seems to be known "
                "only afterwards; add it if it is not"
            )
    return None


def _same_order(codes_L: np.ndarray, size: int, labels_L: np.ndarray) -> bool:
    present_L = codes_L < size
    if present_L.sum() < 20:
        return False
    return abs(same_order(codes_L[present_L], labels_L[present_L])) > _SAME_ORDER


def _single_feature_auc(sums: Sums, coded: Coded) -> float:
    """Returns a column's own AUC, of either sign: by order, or by rates per value.

    Rates per value come from other rows, so that ids seen once say nothing. Whether a value is
    there at all counts as well.

    Returns:
        0.5 to 1; 0.5 where there are too few rows to tell.
    """
    positives_V = sums.labels_VK.sum(axis=1)
    negatives_V = sums.rows_VK.sum(axis=1) - positives_V
    positives, negatives = positives_V.sum(), negatives_V.sum()
    if not enough_to_tell(int(positives), int(negatives), TOO_GOOD, SURE):
        return 0.5
    there_V = np.arange(coded.cells) < coded.size
    values = [auc_of_sums(positives_V, negatives_V, there_V.astype(np.float64))]
    if coded.values_V is not None:  # missing ones below all
        order_V = np.where(there_V, np.arange(coded.cells), -1.0)
        values.append(auc_of_sums(positives_V, negatives_V, order_V))
    if coded.size <= UNREPEATED * (positives + negatives):
        values.append(_by_rates(sums, positives / (positives + negatives)))
    return max(max(value, 1 - value) for value in values if not np.isnan(value))


def _by_rates(sums: Sums, base: float) -> float:
    """AUC of the rates that a row's value has in the other folds."""
    centred = Sums(sums.rows_VK, sums.labels_VK - base * sums.rows_VK, sums.squares_VK)
    negatives_VK = sums.rows_VK - sums.labels_VK
    return held_out_auc(sums.labels_VK, negatives_VK, as_ids(centred, SMOOTHING))


def _implies_label(sums: Sums, coded: Coded, target: Target) -> bool:
    """Returns whether the label is 1 wherever the column is not 0: likely known afterwards."""
    if coded.values_V is None:
        return False
    nonzero_V = np.append(coded.values_V != 0, False)
    rows = float(sums.rows_VK[nonzero_V].sum())
    rate = float(target.raw_L.mean()) if len(target.raw_L) else 1.0
    return bool(
        0 < rows < len(target.raw_L) / 2
        and sums.labels_VK[nonzero_V].sum() == rows
        and rate < 0.5
        and rate**rows < UNLIKELY
    )
