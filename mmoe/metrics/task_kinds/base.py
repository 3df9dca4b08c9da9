"""Interface of a task kind: labels, predictions, metrics, and rows checked by it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mmoe.errors import WHAT_TO_CHANGE, Diverged
from mmoe.metrics.columns import NAMED_COLUMNS, Column, with_bias
from mmoe.metrics.observed import ObservedRows, first_row

Value = float | int | None


class TaskMetrics(NamedTuple):
    """Metrics of a task for metrics.json, and why some could not be computed.

    Attributes:
        values: By key; None where one cannot be computed.
        notes: A sentence each on what could not.
    """

    values: dict[str, Value]
    notes: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelColumn:
    """A label column as the data has it, evaluated but unchecked.

    Attributes:
        data: [N] numbers or flags in NumPy, or text in Arrow.
        missing: bool [N].
        is_text: `data` is text.
        is_flag: `data` is bool.
        source: The column it is, if it is one.
        label: What the config says: a column or an expression.
        shown: The same, quoted for a message.
        used_by: Who reads it, such as `task 'click'`.
        place: From a row's index to its name in a message.
        is_word: From the index of a row of text to whether it is no number.
        config: Of the task, whose keys say what its labels are; None: of no task.
    """

    data: Any
    missing: np.ndarray
    is_text: bool
    is_flag: bool
    source: str | None
    label: str
    shown: str
    used_by: str
    place: Callable[[int], str]
    is_word: Callable[[int], bool]
    config: Any = None


class TaskKind(ABC):
    """Interface of a kind of task: its labels, how predictions are judged and shown.

    How it is trained is in the class of the same name in `mmoe.tasks.kinds`.

    Attributes:
        is_event: Labels are 0 or 1, predictions the probability of 1. A task may then be observed
            where another one's event happened, and has a ROC.
        weighs_unobserved: Rows without a label of their own count in the loss too.
        linear_logit: A linear model of the label is one of its logit: logistic regression of an
            event, linear regression of a number. `model.wide` fits it.
        orders_rows: Its one prediction is a number by which rows can be ordered, not a class.
        monitored: Metrics that can choose the best checkpoint → whether higher is better. The first
            one is the headline. `gain` is the share of the loss of predicting the mean that is
            saved: one scale for kinds of other units.
        loss_metric: The metric that is the training loss, where one is.
        columns: Of the results tables, in order.
        with_bias_keys: Metrics that are also computed with the logged display (`model.bias`), under
            names that end in `_with_bias`.
        calibration_keys: Metrics that stand over the calibration plot.
        calibration_label: What stands at its height; events have words of their own.
        expected_label: What a refusal says of a label that is none.
        expected_prediction: Likewise of a prediction.
    """

    is_event: ClassVar[bool]
    weighs_unobserved: ClassVar[bool] = False
    linear_logit: ClassVar[bool] = True
    orders_rows: ClassVar[bool] = True
    monitored: ClassVar[Mapping[str, bool]]
    loss_metric: ClassVar[str | None] = None
    columns: ClassVar[Sequence[Column]]
    with_bias_keys: ClassVar[Sequence[str]] = ()
    calibration_keys: ClassVar[Sequence[str]]
    calibration_label: ClassVar[str] = "mean label"
    expected_label: ClassVar[str]
    expected_prediction: ClassVar[str] = "a finite number"

    @property
    def headline(self) -> str:
        """Metric that one judges such a task by first."""
        return next(iter(self.monitored))

    @property
    def keys(self) -> set[str]:
        """Names of the metrics that metrics.json holds for such a task."""
        return {column.key for column in self.columns}

    @property
    def columns_with_bias(self) -> Sequence[Column]:
        """Columns of tables for metrics with the logged display; they stand where there are any."""
        return [with_bias(self.column(key)) for key in self.with_bias_keys]

    def column(self, key: str) -> Column:
        """Returns the column of one metric; one that such a task has not is called by its key."""
        plain = NAMED_COLUMNS.get(key, Column(key=key, heading=key, meaning=""))
        return next((column for column in self.columns if column.key == key), plain)

    @abstractmethod
    def numbers(self, label: LabelColumn) -> np.ndarray:
        """Reads a label as float64 [N], anything where it is missing.

        Raises:
            ValueError: Such a task has no such labels; names the row.
        """

    def untrainable(self, label: str, observed: int, lowest: float, highest: float) -> str | None:
        """Says why no task can be trained on labels from `lowest` to `highest`, or None.

        Args:
            label: As a message shows it.
            observed: How many labels there are, 1 or more.
            lowest: The smallest of them.
            highest: The largest.
        """
        return None

    def merged(
        self, label: str, observed: int, mean: float, deviation: float, rounding: float
    ) -> str | None:
        """Says why float32 cannot tell a task's labels apart, or None.

        Args:
            label: As a message shows it.
            observed: How many labels there are, 1 or more.
            mean: Of them.
            deviation: Of them.
            rounding: Root of the mean square of what float32 makes of them off.
        """
        return None

    @abstractmethod
    def wrong_labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns where labels are none of such a task: bool [N]."""

    def wrong_predictions(self, predictions: np.ndarray) -> np.ndarray:
        """Returns where finite predictions are none of such a task: bool [N]."""
        return np.zeros(len(predictions), bool)

    @abstractmethod
    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes all metrics of the task `name`; None where one cannot be computed.

        Args:
            rows: Those with a label; maybe none.
            name: The task's, for notes.
        """

    def intervals(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Says how sure metrics are, under keys of their own: of rows that a result is read off.

        Args:
            rows: One or more, whose weights are not all 0.
            name: The task's.
        """
        return TaskMetrics({}, [])

    def calibrated(self, rows: ObservedRows) -> tuple[np.ndarray, np.ndarray]:
        """Returns outcomes and predictions as a calibration plot compares them."""
        return rows.labels, rows.predictions

    def of_probabilities(self, probabilities_NK: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        """Returns the one number that is predicted of K levels' probabilities: the likeliest.

        Args:
            probabilities_NK: Rows sum to 1.
            levels: The K labels, in the order of the columns.
        """
        return np.asarray(levels)[probabilities_NK.argmax(axis=1)]

    def decide(self, predictions: Any) -> Any:
        """Turns predictions into labels."""
        return predictions

    def advice(self, tasks: Sequence[Mapping[str, Any]], group_column: str | None) -> list[str]:
        """Says what the results of such tasks leave out, and how to get it.

        Args:
            tasks: Metrics of the run's tasks of this kind, as in metrics.json.
            group_column: The config's; None: there is none.
        """
        return []


def empty_reason(rows: ObservedRows) -> str | None:
    """Says why no metric of these rows can be computed, or None."""
    if len(rows) == 0:
        return "the label is observed in no row"
    if rows.weights is not None and rows.weights.sum() == 0:
        return f"all {len(rows)} observed rows have weight 0"
    return None


def observed_rows(
    kind: TaskKind,
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
    more = {
        "weights": None if weights is None else _column(weights, "weights", name),
        "groups": None if groups is None else np.asarray(groups),
        "oracle": None if oracle is None else _column(oracle, "oracle", name),
        "further": None if further is None else np.asarray(further, dtype=np.float64),
    }
    for what, column in {"predictions": predictions, "observed": mask, **more}.items():
        shape = () if column is None else column.shape
        # All but what a task predicts beside its one number are one value a row
        if column is not None and (shape[:1] if what == "further" else shape) != labels.shape:
            raise ValueError(
                f"task {name!r}: {what} has shape {column.shape}, labels {labels.shape}; "
                f"both need one value a row"
            )
    # A model predicts for every row, so all must be good; labels only where they are observed
    _check_predictions(kind, predictions, name)
    for each in () if more["further"] is None else more["further"].T:
        _check_finite(each, name)
    _check_values(kind, labels, more["weights"], more["oracle"], mask=mask, name=name)
    kept = {what: None if column is None else column[mask] for what, column in more.items()}
    return ObservedRows(labels=labels[mask], predictions=predictions[mask], **kept)


def _column(values: np.ndarray, what: str, name: str) -> np.ndarray:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1:
        raise ValueError(
            f"task {name!r}: {what} has shape {column.shape}; expected one value a row"
        )
    return column


def _check_predictions(kind: TaskKind, predictions: np.ndarray, name: str) -> None:
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
    kind: TaskKind,
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
