"""Alarms: predictions whose level is wrong, or that are worse than the mean of the labels."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import gammainccinv, gammaincinv

from mmoe.alarms.alarm import Alarm

# A model off by less still says something; half or twice as many is a level that nobody trained
_LOWEST, _HIGHEST = 0.5, 2.0
_BESIDE = 0.005  # on either side of the 99 % interval of a count
_FEWEST_ROWS = 100  # a metric of fewer is an accident
_FEWEST_POSITIVES = 20  # likewise of NE

_MEND = (
    "the model is worse than a constant: train longer or with a lower learning rate, and look for "
    "rows that differ from training"
)


def wrong_level(
    metrics: Mapping[str, Mapping[str, Any]], deviations: Mapping[str, float]
) -> list[Alarm]:
    """Finds tasks whose predictions are too high, too low, or worse than one number for all rows.

    Args:
        metrics: Task → its metrics.
        deviations: Task with labels that are numbers → the deviation of the labels.

    Example:
        >>> metrics = {"buy": {"calibration": 7.2, "ne": 1.5, "rows": 20_000, "positives": 100}}
        >>> [alarm.kind for alarm in wrong_level(metrics, {})]
        ['calibration', 'worse_than_mean']
    """
    found = []
    for task, values in metrics.items():
        if (values.get("rows") or 0) < _FEWEST_ROWS:
            continue
        positives, ratio, ne = (values.get(key) for key in ("positives", "calibration", "ne"))
        if positives and ratio is not None and _is_off(ratio, positives):
            found.append(_calibration(task, ratio, positives))
        if ne is not None and ne > 1 and positives and positives >= _FEWEST_POSITIVES:
            finding = (
                f"{task}: NE is {ne:.4f}; above 1 a constant, the rate of positives, is better"
            )
            found.append(Alarm(kind="worse_than_mean", about=task, finding=finding, mend=_MEND))
        rmse, deviation = values.get("rmse"), deviations.get(task, 0.0)
        if rmse is not None and deviation > 0 and rmse > deviation:
            finding = f"{task}: RMSE {rmse:.4g} is above the label's deviation {deviation:.4g}"
            found.append(Alarm(kind="worse_than_mean", about=task, finding=finding, mend=_MEND))
    return found


def label_deviation(labels_N: np.ndarray, weights_N: np.ndarray) -> float:
    """Returns the weighted deviation of labels; 0 where none counts.

    Args:
        labels_N: Of a task, read as float64.
        weights_N: 0 or more; rows without a label have 0.

    Example:
        >>> label_deviation(np.array([1.0, 3.0]), np.ones(2))
        1.0
    """
    if not weights_N.sum() > 0:
        return 0.0
    labels_N = labels_N.astype(np.float64)
    mean = np.average(labels_N, weights=weights_N)
    return math.sqrt(np.average((labels_N - mean) ** 2, weights=weights_N))


def _is_off(ratio: float, positives: int) -> bool:
    """Whether a ratio lies beyond the bounds, and beyond the interval of a Poisson count."""
    low, high = gammaincinv(positives, _BESIDE), gammainccinv(positives + 1, _BESIDE)
    return not _LOWEST <= ratio <= _HIGHEST and not low <= ratio * positives <= high


def _calibration(task: str, ratio: float, positives: int) -> Alarm:
    much = f"{ratio:.3g} times" if ratio > 1 else f"only {ratio:.3g} of"
    return Alarm(
        kind="calibration",
        about=task,
        finding=f"{task}: predictions add up to {much} the {positives:,} positives",
        mend="say negative_sampling_rate where the log kept a share of the negatives, train "
        "longer, or train on rows like these",
    )
