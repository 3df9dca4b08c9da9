"""Rows of one task that count, checked once for metrics and curves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mmoe.errors import WHAT_TO_CHANGE, Diverged

if TYPE_CHECKING:  # kinds judge these rows
    from mmoe.metrics.task_kinds.base import TaskKind


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


def observed_rows(
    kind: "TaskKind",
    labels: np.ndarray,
    predictions: np.ndarray,
    observed: np.ndarray | None = None,
    *,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    oracle: np.ndarray | None = None,
    further: np.ndarray | None = None,
    name: str = "task",
) -> ObservedRows:
    """Checks one task's columns and keeps the rows whose label is observed.

    Args:
        kind: Says which labels and predictions are right.
        labels: [N] whatever they like where unobserved.
        predictions: [N] finite, in every row.
        observed: [N] bool; None = all rows.
        weights: [N] non-negative row weights.
        groups: [N] keys of GAUC.
        oracle: [N] true probabilities of a positive label.
        further: [N, K] predictions beside the one number; finite.
        name: The task's, for error messages.

    Raises:
        ValueError: A column has the wrong length, or a value is out of range.

    Example:
        >>> from mmoe.metrics.task_kinds import kind_of
        >>> labels, predictions = np.array([1, 0]), np.array([0.9, 0.2])
        >>> rows = observed_rows(kind_of("binary"), labels, predictions, np.array([True, False]))
        >>> len(rows), rows.labels.tolist()
        (1, [1.0])
    """
    labels, predictions = _column(labels, "labels", name), _column(predictions, "predictions", name)
    mask = np.ones(len(labels), bool) if observed is None else np.asarray(observed, dtype=bool)
    weights = None if weights is None else _column(weights, "weights", name)
    oracle = None if oracle is None else _column(oracle, "oracle", name)
    groups = None if groups is None else np.asarray(groups)
    further = None if further is None else np.asarray(further, dtype=np.float64)
    for what, column in (
        ("predictions", predictions),
        ("observed", mask),
        ("weights", weights),
        ("groups", groups),
        ("oracle", oracle),
        ("further", further),
    ):
        shape = () if column is None else column.shape
        # All but what a task predicts beside its one number are one value a row
        if column is not None and (shape[:1] if what == "further" else shape) != labels.shape:
            raise ValueError(
                f"task {name!r}: {what} has shape {column.shape}, labels {labels.shape}; "
                f"both need one value a row"
            )
    # A model predicts for every row, so all must be good; labels only where they are observed
    _check_predictions(kind, predictions, name)
    for more in [] if further is None else further.T:
        _check_finite(more, name)
    _check_values(kind, labels, weights, oracle, mask=mask, name=name)
    return ObservedRows(
        labels=labels[mask],
        predictions=predictions[mask],
        weights=None if weights is None else weights[mask],
        groups=None if groups is None else groups[mask],
        oracle=None if oracle is None else oracle[mask],
        further=None if further is None else further[mask],
    )


def _column(values: np.ndarray, what: str, name: str) -> np.ndarray:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1:
        raise ValueError(
            f"task {name!r}: {what} has shape {column.shape}; expected one value a row"
        )
    return column


def _check_predictions(kind: "TaskKind", predictions: np.ndarray, name: str) -> None:
    _check_finite(predictions, name)
    row = first_row(kind.wrong_predictions(predictions))
    if row is not None:
        raise ValueError(
            f"task {name!r}, row {row} (counted from 0): the prediction is {predictions[row]}, "
            f"expected {kind.expected_prediction}"
        )


def _check_finite(predictions: np.ndarray, name: str) -> None:
    # Unobserved rows too: a model that gives NaN anywhere is broken, whether or not it is measured.
    row = first_row(~np.isfinite(predictions))
    if row is not None:
        raise Diverged(
            f"task {name!r}, row {row} (counted from 0): the prediction is {predictions[row]}, "
            f"expected a finite number; training diverged: {WHAT_TO_CHANGE}"
        )


def _check_values(
    kind: "TaskKind",
    labels: np.ndarray,
    weights: np.ndarray | None,
    oracle: np.ndarray | None,
    *,
    mask: np.ndarray,
    name: str,
) -> None:
    checks = [("label", labels, kind.wrong_labels(labels), kind.expected_label)]
    if weights is not None:
        bad = ~(np.isfinite(weights) & (weights >= 0))
        checks.append(("weight", weights, bad, "a finite number of at least 0"))
    if oracle is not None:
        bad = ~((oracle >= 0) & (oracle <= 1))
        checks.append(("oracle's probability", oracle, bad, "a number between 0 and 1"))
    for what, column, bad, expected in checks:
        row = first_row(bad & mask)
        if row is not None:
            raise ValueError(
                f"task {name!r}, row {row} (counted from 0): the {what} is {column[row]}, expected "
                f"{expected}; mend the data, or mark the row unobserved"
            )


def first_row(flags: np.ndarray) -> int | None:
    """Returns the first row that is flagged, or None."""
    return int(flags.argmax()) if flags.any() else None
