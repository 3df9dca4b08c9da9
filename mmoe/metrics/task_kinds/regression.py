"""Numbers: a label is one, and so is its prediction; values of 0 or more such as spend."""

from typing import ClassVar

import numpy as np

from mmoe.metrics.columns import ROWS, Column
from mmoe.metrics.intervals import r_squared
from mmoe.metrics.observed import ObservedRows, first_row
from mmoe.metrics.task_kinds.base import LabelColumn, TaskKind, TaskMetrics, Value, empty_reason

_FEWEST = 100  # labels, of which a deviation says something
_NOISE = 1e-12  # of the mean
_ROUNDING = 0.1  # of the deviation: RMSE grows by less than 1 % below it


class Regression(TaskKind):
    """Regression task: judged by RMSE and MAE, in units of the label, and by R²."""

    is_event = False
    called: ClassVar = "a regression"  # by a refusal
    monitored: ClassVar = {"rmse": False, "mae": False, "r2": True, "gain": True}
    with_bias_keys = ("rmse",)
    calibration_keys = ("rmse",)
    expected_label = "a finite number"
    columns = (
        Column(
            key="rmse",
            heading="RMSE",
            meaning="root of the mean squared error, in units of the label",
            form="{:.4g}",
            title="RMSE",
        ),
        Column(
            key="mae",
            heading="MAE",
            meaning="mean absolute error, in units of the label",
            form="{:.4g}",
            title="MAE",
        ),
        Column(
            key="r2",
            heading="R²",
            meaning="share of the labels' variance that predictions explain: 1 is right, 0 is what "
            "their mean reaches",
            title="R²",
        ),
        ROWS,
    )

    def numbers(self, label: LabelColumn) -> np.ndarray:
        """Reads finite numbers within float32."""
        if label.is_text:
            raise ValueError(_no_number(label, self.called))
        numbers_N = label.data.astype(np.float64)
        row = first_row(~np.isfinite(numbers_N) & ~label.missing)
        if row is not None:
            raise ValueError(
                f"{label.place(row)}: label {label.shown} of {label.used_by} is "
                f"{numbers_N[row]}, expected a finite number; leave the cell empty or clip it"
            )
        # Losses are computed in float32; a label beyond its range would become infinite there.
        row = first_row(np.abs(numbers_N) > np.finfo(np.float32).max)
        if row is not None:
            raise ValueError(
                f"{label.place(row)}: label {label.shown} of {label.used_by} is "
                f"{numbers_N[row]:g}, beyond float32; rescale it, such as log1p(`{label.label}`)"
            )
        return numbers_N

    def untrainable(self, label: str, observed: int, lowest: float, highest: float) -> str | None:
        """Says that there is one value only."""
        return one_alone("value", label, observed) if lowest == highest else None

    def merged(
        self, label: str, observed: int, mean: float, deviation: float, rounding: float
    ) -> str | None:
        """Says why labels are so far from 0 that float32 takes most of them for one number."""
        one_number = deviation <= _NOISE * abs(mean)  # and what computing it left
        if observed < _FEWEST or one_number or rounding <= _ROUNDING * deviation:
            return None
        return (
            f"has the label {label}, which is {mean:.10g} in the mean with a deviation of "
            f"{deviation:.3g}, expected one that float32 can tell (it errs by {rounding:.2g} "
            f"here); take a constant off, such as `{label[1:-1].strip('`')}` - {mean:.4g}"
        )

    def wrong_labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns where a label is not finite."""
        return ~np.isfinite(labels)

    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes rmse, mae, r2, gain and rows; no r2 of labels that are all the same."""
        values: dict[str, Value] = {"rmse": None, "mae": None, "r2": None, "gain": None}
        values["rows"] = len(rows)
        reason = empty_reason(rows)
        if reason is not None:
            return TaskMetrics(values, [f"{name}: no metric computed: {reason}"])
        errors = rows.predictions - rows.labels
        values["rmse"] = float(np.sqrt(np.average(errors**2, weights=rows.weights)))
        values["mae"] = float(np.average(np.abs(errors), weights=rows.weights))
        values["r2"] = values["gain"] = r_squared(rows)
        return TaskMetrics(values, [])


def one_alone(what: str, label: str, observed: int) -> str:
    """Says that all labels are the same."""
    return (
        f"has one {what} only among its {observed} observed training labels ({label}); check the "
        "label and the split, or remove the task"
    )


def _no_number(label: LabelColumn, called: str) -> str:
    """Names the first label that is text and no number."""
    there = np.flatnonzero(~label.missing).tolist()
    row = next(filter(label.is_word, there), there[0])
    return (
        f"{label.place(row)}: {label.used_by} is {called}, but its label {label.shown} is the "
        f"text {label.data[row].as_py()!r}, expected a number; mend the cell, or leave it empty"
    )


class Huber(Regression):
    """Regression with Huber's loss, judged like any other."""


class NonNegative(Regression):
    """Number of 0 or more: judged by RMSE, MAE and R², by its order and by its sum."""

    linear_logit = False
    monitored: ClassVar = {**Regression.monitored, "gini": True}
    calibration_keys = ("rmse", "calibration")
    expected_label = "a finite number of 0 or more"
    columns = (
        *Regression.columns[:-1],
        Column(
            key="gini",
            heading="Gini",
            meaning="normalised Gini coefficient: 1 where predictions order rows as their labels "
            "do, 0 by chance",
            title="Gini",
        ),
        Column(
            key="calibration",
            heading="calibration",
            meaning="sum of predictions over that of labels; 1 is right, above 1 promises too much",
            form="{:.3f}",
            title="calib.",
        ),
        ROWS,
    )

    def numbers(self, label: LabelColumn) -> np.ndarray:
        """Reads finite numbers of 0 or more."""
        numbers_N = super().numbers(label)
        row = first_row((numbers_N < 0) & ~label.missing)
        if row is not None:
            raise ValueError(
                f"{label.place(row)}: label {label.shown} of {label.used_by} is "
                f"{numbers_N[row]:g}, expected 0 or more, as it is {self.called}; mend the cell, "
                "or leave it empty"
            )
        return numbers_N

    def wrong_labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns where a label is negative or not finite."""
        return ~(np.isfinite(labels) & (labels >= 0))

    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes rmse, mae, r2, gini, calibration and rows."""
        found = super().metrics(rows, name)
        values = {**found.values, "gini": None, "calibration": None}
        if found.values["rmse"] is None:
            return TaskMetrics(values, found.notes)
        values["gini"] = normalised_gini(rows.labels, rows.predictions, rows.weights)
        total = float(np.average(rows.labels, weights=rows.weights))
        if total > 0:
            predicted = float(np.average(rows.predictions, weights=rows.weights))
            values["calibration"] = predicted / total
        missing = [key for key in ("gini", "calibration") if values[key] is None]
        if not missing:
            return TaskMetrics(values, found.notes)
        same = f"all {len(rows)} observed labels are {rows.labels[0]:g}"
        note = f"{name}: {', '.join(missing)} not computed: {same}"
        return TaskMetrics(values, [*found.notes, note])


class WatchTime(NonNegative):
    """Seconds watched, 0 where nothing was."""

    called: ClassVar = "a watch time"


class Ziln(NonNegative):
    """Value that is mostly 0 and else has a long tail."""

    called: ClassVar = "a value of kind ziln"


class D2Q(WatchTime):
    """Seconds watched, learnt as a quantile and judged as seconds."""


def normalised_gini(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> float | None:
    """Computes `cov(y, F(s)) / cov(y, F(y))`, F the share of rows below, ties counting half.

    1: rows are ordered by score as by label; 0: as by chance; −1: the wrong way round. Of labels
    that are 0 or 1 it is `2 AUC − 1`.

    Args:
        labels: [N] numbers, N ≥ 1.
        scores: [N] any finite numbers; only their order matters.
        weights: [N] non-negative, not all zero; None counts every row once.

    Returns:
        The coefficient, or None where all labels are equal.

    Example:
        >>> round(normalised_gini(np.array([0.0, 1.0, 5.0]), np.array([1.0, 3.0, 2.0])), 3)
        0.2

    Source: Lerman and Yitzhaki, "A note on the calculation and interpretation of the Gini index"
        (Economics Letters 15, 1984); as a metric of predicted value in Wang et al.,
        arXiv 1912.07753, section 5.2.
    """
    labels = np.asarray(labels, np.float64)
    weights = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    counted_N = labels[weights > 0]
    if counted_N.min() == counted_N.max():  # of which roundings would make an order
        return None
    centred = weights * (labels - np.average(labels, weights=weights))
    best = float((centred * _below(labels, weights)).sum())
    return float((centred * _below(np.asarray(scores), weights)).sum()) / best if best else None


def _below(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weight of the rows with a smaller value, and half of those with the same."""
    _, indices = np.unique(values, return_inverse=True)
    total = np.bincount(indices, weights=weights)
    return (np.cumsum(total) - total / 2)[indices]
