"""Rows of one task that count."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedRows:
    """Labels [n], predictions [n] and companions, float64, where the label is observed.

    Attributes:
        labels: Of the task's kind.
        predictions: The one number that a task predicts, after its link.
        weights: None: 1 each.
        groups: Of GAUC; None: no group column.
        oracle: True probabilities; None: unknown.
        further: [n, K], what a task predicts beside its one number, such as a probability a class.
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
