"""Rows of one task that count."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedRows:
    """Labels [n], predictions [n] and companions, float64, where the label is observed.

    `further` [n, K] is what a task predicts beside its one number, such as a probability a class.
    """

    labels: np.ndarray
    predictions: np.ndarray
    weights: np.ndarray | None
    groups: np.ndarray | None
    oracle: np.ndarray | None
    further: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)


def first_row(flags: np.ndarray) -> int | None:
    """Returns the first row that is flagged, or None."""
    return int(flags.argmax()) if flags.any() else None
