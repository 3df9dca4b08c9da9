"""Several outcomes: classes without an order, levels in one."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mmoe.metrics.auc import auc
from mmoe.metrics.columns import ROWS, Column
from mmoe.metrics.observed import ObservedRows, first_row
from mmoe.metrics.task_kinds.base import LabelColumn, TaskKind, TaskMetrics, Value, empty_reason
from mmoe.metrics.task_kinds.regression import Regression, one_alone

_SHOWN = 8  # classes that a message lists
_EPSILON = float(np.finfo(np.float64).eps)
_ACCURACY = Column(
    key="accuracy",
    heading="accuracy",
    meaning="share of rows whose likeliest class, or nearest level, is the label",
    title="accuracy",
)


class Multiclass(TaskKind):
    """One of several classes: judged by accuracy, log-loss and the mean AUC of the classes."""

    is_event = False
    linear_logit = False
    orders_rows = False
    monitored: ClassVar = {"accuracy": True, "logloss": False, "macro_auc": True}
    loss_metric = "logloss"
    calibration_keys = ("accuracy", "logloss")
    calibration_label = "share that is right"
    expected_label = "the number of a class"
    columns = (
        _ACCURACY,
        Column(
            key="logloss",
            heading="log-loss",
            meaning="mean negative log-likelihood in nats; lower is better",
            title="log-loss",
            every_day=False,
        ),
        Column(
            key="macro_auc",
            heading="macro AUC",
            meaning="mean over classes of the AUC of each against all others; 0.5 is guessing",
            title="macro AUC",
        ),
        ROWS,
    )

    def numbers(self, label: LabelColumn) -> np.ndarray:
        """Reads the number of each row's class among those of the config."""
        names = label.config.further
        if label.is_text:
            values_N = np.asarray(label.data.to_numpy(zero_copy_only=False), dtype=object)
            values_N = np.where(label.missing, names[0], values_N).astype(str)
            known = np.array(names, dtype=str)
        else:
            values_N = np.asarray(label.data, dtype=np.float64)
            known = np.array([_number(name) for name in names])
        order = np.argsort(known, kind="stable")
        indices_N = np.searchsorted(known, values_N, sorter=order).clip(0, len(known) - 1)
        numbers_N = order[indices_N]
        row = first_row((known[numbers_N] != values_N) & ~label.missing)
        if row is not None:
            came = values_N[row] if label.is_text else f"{values_N[row]:g}"
            listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            raise ValueError(
                f"{label.place(row)}: label {label.shown} of {label.used_by} is {came!s}, which is "
                f"none of its classes ({listed}); add it to `classes`, or leave the cell empty"
            )
        return numbers_N.astype(np.float64)

    def wrong_labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns where a label numbers no class."""
        return ~((labels >= 0) & (labels == np.floor(labels)))

    def untrainable(self, label: str, observed: int, lowest: float, highest: float) -> str | None:
        """Says that there is one class only."""
        return one_alone("class", label, observed) if lowest == highest else None

    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes accuracy, logloss, macro_auc and rows."""
        values: dict[str, Value] = dict.fromkeys(("accuracy", "logloss", "macro_auc"))
        values["rows"] = len(rows)
        reason = empty_reason(rows)
        if reason is not None:
            return TaskMetrics(values, [f"{name}: no metric computed: {reason}"])
        right_N = np.rint(rows.predictions) == rows.labels
        values["accuracy"] = float(np.average(right_N, weights=rows.weights))
        if rows.further is None:
            return TaskMetrics(values, [f"{name}: logloss, macro_auc not computed: there are no "
                                        "probabilities of classes"])  # fmt: skip
        labels_N = rows.labels.astype(np.int64)
        own_N = rows.further[np.arange(len(rows)), labels_N]
        losses_N = -np.log(np.clip(own_N, _EPSILON, 1))
        values["logloss"] = float(np.average(losses_N, weights=rows.weights))
        aucs = [
            auc((labels_N == k).astype(np.float64), rows.further[:, k], rows.weights)
            for k in np.unique(labels_N)
        ]
        known = [value for value in aucs if value is not None]
        if known:
            values["macro_auc"] = float(np.mean(known))
        notes = [] if known else [f"{name}: macro_auc not computed: all rows have one class"]
        return TaskMetrics(values, notes)

    def calibrated(self, rows: ObservedRows) -> tuple[np.ndarray, np.ndarray]:
        """Returns whether the likeliest class is right, and its probability."""
        right_N = (np.rint(rows.predictions) == rows.labels).astype(np.float64)
        return right_N, right_N if rows.further is None else rows.further.max(axis=1)


class Ordinal(Regression):
    """Levels in an order: judged by RMSE, MAE, R², and by accuracy and kappa of the nearest one."""

    linear_logit = False
    called: ClassVar = "of levels"
    monitored: ClassVar = {**Regression.monitored, "accuracy": True, "kappa": True}
    expected_label = "a whole number"
    columns = (
        *Regression.columns[:-1],
        _ACCURACY,
        Column(
            key="kappa",
            heading="kappa",
            meaning="quadratic weighted kappa of the level nearest to the prediction: 1 is right, "
            "0 by chance",
            title="kappa",
        ),
        ROWS,
    )

    def numbers(self, label: LabelColumn) -> np.ndarray:
        """Reads whole numbers from the lowest level to the highest."""
        numbers_N, task = super().numbers(label), label.config
        fits_N = (numbers_N >= task.lowest) & (numbers_N <= task.highest)
        row = first_row(~(fits_N & (numbers_N == np.floor(numbers_N))) & ~label.missing)
        if row is not None:
            raise ValueError(
                f"{label.place(row)}: label {label.shown} of {label.used_by} is "
                f"{numbers_N[row]:g}, expected a whole number from {task.lowest} to "
                f"{task.highest}, its levels; mend the cell, or leave it empty"
            )
        return numbers_N

    def wrong_labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns where a label is no whole number."""
        return ~(np.isfinite(labels) & (labels == np.floor(labels)))

    def untrainable(self, label: str, observed: int, lowest: float, highest: float) -> str | None:
        """Says that there is one level only."""
        return one_alone("level", label, observed) if lowest == highest else None

    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes rmse, mae, r2, accuracy, kappa and rows."""
        found = super().metrics(rows, name)
        values: dict[str, Value] = {**found.values, "accuracy": None, "kappa": None}
        if found.values["rmse"] is None:
            return TaskMetrics(values, found.notes)
        nearest_N = np.rint(rows.predictions)
        values["accuracy"] = float(np.average(nearest_N == rows.labels, weights=rows.weights))
        values["kappa"] = quadratic_kappa(rows.labels, nearest_N, rows.weights)
        return TaskMetrics(values, found.notes)

    def decide(self, predictions: Any) -> Any:
        """Turns expected levels into the nearest ones."""
        return np.rint(predictions)

    def of_probabilities(self, probabilities_NK: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        """Returns the expected level."""
        return probabilities_NK @ np.asarray(levels)


def quadratic_kappa(
    labels: np.ndarray, decided: np.ndarray, weights: np.ndarray | None = None
) -> float | None:
    """Computes Cohen's kappa of two ratings with quadratic weights.

    `1 − E[(y − ŷ)²] / E[(y − ŷ′)²]`, ŷ′ the decision of a row drawn apart from y; which is
    `1 − E[(y − ŷ)²] / (var y + var ŷ + (E y − E ŷ)²)`.

    Args:
        labels: [N] levels.
        decided: [N] levels.
        weights: [N] non-negative, not all zero; None counts every row once.

    Returns:
        Kappa, or None where all labels and decisions are one level.

    Example:
        >>> quadratic_kappa(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 4, 3]))
        0.8

    Source: Cohen, "Weighted kappa" (Psychological Bulletin 70, 1968).
    """
    counted = slice(None) if weights is None else weights > 0
    both = np.concatenate([labels[counted], decided[counted]])
    if both.min() == both.max():  # of which roundings would make something
        return None
    apart = np.average((labels - decided) ** 2, weights=weights)
    means = [np.average(each, weights=weights) for each in (labels, decided)]
    spread = [
        np.average((each - mean) ** 2, weights=weights)
        for each, mean in zip((labels, decided), means, strict=True)
    ]
    chance = sum(spread) + (means[0] - means[1]) ** 2
    return float(1 - apart / chance)


def _number(name: str) -> float:
    """The number that a class is called by; NaN where it is none."""
    try:
        return float(name)
    except ValueError:
        return float("nan")
