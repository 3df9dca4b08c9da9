"""Binary tasks: a label is 0 or 1, its prediction the probability of 1, or a score that ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mmoe.metrics.auc import GroupedAuc, auc, average_precision, grouped_auc
from mmoe.metrics.calibration import (
    calibration_ratio,
    expected_calibration_error,
    log_loss,
    normalised_entropy,
)
from mmoe.metrics.columns import NONE, ROWS, Column, count, is_number
from mmoe.metrics.intervals import auc_interval
from mmoe.metrics.observed import ObservedRows, first_row
from mmoe.metrics.task_kinds.base import LabelColumn, TaskKind, TaskMetrics, Value, empty_reason

# Rows of the rarer class below which a 95 % interval of an AUC is rough itself. Of normal scores it
# held the true AUC of 0.7, 0.9 and 0.97 in 94, 94 and 91 % of 700 samples with 50 positives, in 93,
# 89 and 81 % with 10.
_FEW = 50


def _interval(values: Mapping[str, Any]) -> str:
    ends = values.get("auc_low"), values.get("auc_high")
    if not all(map(is_number, ends)):
        return NONE
    return "–".join(f"{end:.4f}" for end in ends) + _rough(values)


def _half_width(values: Mapping[str, Any]) -> str:
    low, high = values.get("auc_low"), values.get("auc_high")
    if not (is_number(low) and is_number(high)):
        return NONE
    return f"{(high - low) / 2:.4f}{_rough(values)}"


def _rough(values: Mapping[str, Any]) -> str:
    return "" if values.get("auc_few") is None else "*"


def _gap(values: Mapping[str, Any]) -> str:
    ours, best = values.get("auc"), values.get("oracle_auc")
    if not (is_number(ours) and is_number(best)):
        return NONE
    return f"{best - ours:.4f}".replace("-", "−")


def _positives(values: Mapping[str, Any]) -> str:
    rows, positives = values.get("rows"), values.get("positives")
    if not rows or positives is None:
        return count(positives)
    return (
        f"{count(positives)} ({100 * positives / rows:.{1 if positives * 100 >= rows else 2}f} %)"
    )


class Binary(TaskKind):
    """Binary task: judged by AUC, within groups too, by log-loss and by calibration."""

    is_event = True
    monitored: ClassVar = {"auc": True, "logloss": False, "ne": False, "pr_auc": True, "gain": True}
    with_bias_keys = ("auc", "logloss", "calibration")
    loss_metric = "logloss"
    calibration_keys = ("calibration", "ece")
    expected_label = "0 or 1"
    expected_prediction = "a probability between 0 and 1; apply the sigmoid first"
    columns = (
        Column(
            key="auc",
            heading="AUC",
            meaning="chance that a positive row is scored above a negative one; 0.5 is guessing",
            title="AUC",
        ),
        Column(
            key="auc_low",
            heading="95 %",
            meaning="the AUC's interval (DeLong): in 95 of 100 cases it holds that of many more "
            f"such rows; with a * it rests on fewer than {_FEW} rows of a class, and is rough",
            written=_interval,
            title="± 95 %",
            cell=_half_width,
            every_day=False,
            optional=True,
        ),
        Column(
            key="oracle_auc",
            heading="best AUC",
            meaning="the oracle's: what the true probabilities reach on the same rows",
            title="best",
            every_day=False,
            optional=True,
        ),
        Column(
            key="gap",
            heading="gap",
            meaning="best AUC minus AUC: what a better model could still gain",
            written=_gap,
            optional=True,
        ),
        Column(
            key="gauc",
            heading="GAUC",
            meaning="AUC within each group (user), averaged by rows over groups with both classes",
            title="GAUC",
            optional=True,
        ),
        Column(
            key="pr_auc",
            heading="PR-AUC",
            meaning="average precision: area under the precision-recall curve; guessing has the "
            "share of positives",
            title="PR-AUC",
            every_day=False,
            optional=True,
        ),
        Column(
            key="logloss",
            heading="log-loss",
            meaning="mean negative log-likelihood in nats; lower is better",
            title="log-loss",
            every_day=False,
        ),
        Column(
            key="ne",
            heading="NE",
            meaning="log-loss over that of the base rate; below 1 it has learned",
            title="NE",
        ),
        Column(
            key="calibration",
            heading="calibration",
            meaning="sum of predictions over positives; 1 is right, above 1 promises too much",
            form="{:.3f}",
            title="calib.",
        ),
        Column(
            key="ece",
            heading="ECE",
            meaning="mean gap of prediction and outcome over bins of equal size",
            title="ECE",
            every_day=False,
        ),
        ROWS,
        Column(
            key="positives",
            heading="positives",
            meaning="positive rows, and their share",
            written=_positives,
            title="positives",
            is_count=True,
        ),
    )

    def numbers(self, label: LabelColumn) -> np.ndarray:
        """Reads flags, and the numbers 0 and 1."""
        return zero_or_one(label)

    def untrainable(self, label: str, observed: int, lowest: float, highest: float) -> str | None:
        """Says which class is missing: AUC and log-loss need both."""
        if lowest != highest:
            return None
        return (
            f"has one class only: all {observed} observed training labels ({label}) are "
            f"{lowest:g}, expected both 0 and 1; check the label and the split, or remove the task"
        )

    def wrong_labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns where a label is neither 0 nor 1."""
        return ~np.isin(labels, (0.0, 1.0))

    def wrong_predictions(self, predictions: np.ndarray) -> np.ndarray:
        """Returns where a prediction is no probability."""
        return (predictions < 0) | (predictions > 1)

    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes AUC, GAUC, PR-AUC, log-loss, NE, gain, calibration, ECE, counts, an oracle's."""
        y, p, w = rows.labels, rows.predictions, rows.weights
        values: dict[str, Value] = dict.fromkeys(
            ("auc", "gauc", "pr_auc", "logloss", "ne", "gain", "calibration", "ece"), None
        )
        values |= {
            "rows": len(rows),
            "positives": int(y.sum()),
            "oracle_auc": None,
            "oracle_logloss": None,
        }
        reason = empty_reason(rows)
        if reason is not None:
            return TaskMetrics(values, [f"{name}: no metric computed: {reason}"])
        values |= {
            "auc": auc(y, p, w),
            "pr_auc": average_precision(y, p, w),
            "logloss": log_loss(y, p, w),
            "ne": normalised_entropy(y, p, w),
            "calibration": calibration_ratio(y, p, w),
            "ece": expected_calibration_error(y, p, w),
        }
        if values["ne"] is not None:
            values["gain"] = 1 - values["ne"]
        if rows.oracle is not None:
            values["oracle_auc"] = auc(y, rows.oracle, w)
            values["oracle_logloss"] = log_loss(y, rows.oracle, w)
        if values["auc"] is None:
            values["pr_auc"] = None  # 1 where all are positive, which says nothing
        notes = _one_class_notes(rows, values, name)
        if rows.groups is not None:
            grouped = grouped_auc(y, p, rows.groups, w)
            values["gauc"] = grouped.value
            notes.append(_group_note(grouped, len(rows), name))
        return TaskMetrics(values, notes)

    def intervals(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes the ends of the AUC's 95 % interval, and how few rows it rests on, if few."""
        values: dict[str, Value] = dict.fromkeys(("auc_low", "auc_high", "auc_few"), None)
        labels = rows.labels if rows.weights is None else rows.labels[rows.weights > 0]
        positives = int(labels.sum())
        rarer = min(positives, len(labels) - positives)
        if rarer == 0:  # there is no AUC, which a note says
            return TaskMetrics(values, [])
        found = auc_interval(rows.labels, rows.predictions, rows.weights)
        if found is not None:
            values |= {"auc_low": found.low, "auc_high": found.high}
        if rarer >= _FEW:
            return TaskMetrics(values, [])
        values["auc_few"] = rarer
        return TaskMetrics(values, [_few_note(values, positives, rarer, name)])

    def decide(self, predictions: Any) -> Any:
        """Returns 1 where the probability is at least one half."""
        return (predictions >= 0.5).astype(int)

    def advice(self, tasks: Sequence[Mapping[str, Any]], group_column: str | None) -> list[str]:
        """Says why there is no GAUC or no AUC."""
        lines = []
        if tasks and all(values.get("gauc") is None for values in tasks):
            if group_column is None:
                lines.append("No GAUC: set data.group_column to the user's column to have it.")
            else:
                lines.append(f"No GAUC: no {group_column} has rows of both classes.")
        if any(values.get("auc") is None for values in tasks):
            lines.append(f"{NONE} stands where the test rows of a task are all of one class.")
        return lines


class EntireSpace(Binary):
    """Consequence of an event: a probability given the event, judged where it happened."""

    weighs_unobserved = True  # without the event, both are known not to have happened


# What judges a prediction as a probability
_OF_PROBABILITIES = ("logloss", "ne", "gain", "calibration", "ece", "oracle_logloss")


class Ranked(Binary):
    """Task whose predictions are scores: judged by how it ranks, not as probabilities."""

    monitored: ClassVar = {"auc": True, "gauc": True, "pr_auc": True}
    with_bias_keys = ("auc",)
    loss_metric = None
    calibration_keys = ()
    columns = (
        *(column for column in Binary.columns if column.key not in _OF_PROBABILITIES),
        Column(
            key="ranked_rows",
            heading="ranked rows",
            meaning="observed rows; predictions are scores that rank, and no probabilities: there "
            "is no log-loss and no calibration",
            written=lambda values: count(values.get("ranked_rows")),
            is_count=True,
            every_day=False,
        ),
    )

    def metrics(self, rows: ObservedRows, name: str) -> TaskMetrics:
        """Computes AUC, GAUC, PR-AUC, counts, the oracle's."""
        values, notes = super().metrics(rows, name)
        kept: dict[str, Any] = {k: v for k, v in values.items() if k not in _OF_PROBABILITIES}
        kept["ranked_rows"] = values["rows"]
        notes = [note.replace("auc, ne, calibration not", "auc not") for note in notes]
        return TaskMetrics(kept, notes)


class Jrc(Binary):
    """Task ranked within groups whose predictions are probabilities all the same."""


def zero_or_one(label: LabelColumn) -> np.ndarray:
    """Returns flags and the numbers 0 and 1 as float64.

    Raises:
        ValueError: It is anything else; names the row.
    """
    observed_N = ~label.missing
    if label.is_text:
        wrong_N = observed_N
    elif label.is_flag:
        wrong_N = np.zeros(len(observed_N), bool)
    else:
        wrong_N = observed_N & (label.data != 0) & (label.data != 1)
    row = first_row(wrong_N)
    if row is not None:
        came = label.data[row]
        came = came.item() if isinstance(came, np.generic) else came.as_py()
        raise ValueError(_not_binary(label, came, label.place(row)))
    if label.is_text:  # an empty text column
        return np.zeros(len(observed_N))
    return label.data.astype(np.float64)


def _not_binary(label: LabelColumn, came: object, where: str) -> str:
    source = label.source
    column = f"column {source!r}" if source else "the label"
    name = source if source is None or source.isidentifier() else f"`{source}`"
    hint = f"{name} == {came!r}" if isinstance(came, str) else f"{name or 'the expression'} > 0"
    return (
        f"{where}: {column} of {label.used_by} is {came!r}, expected 0 or 1 (or true, false, "
        f'empty); write an expression such as "{hint}", or `kind: regression`'
    )


def _one_class_notes(rows: ObservedRows, values: dict[str, Value], name: str) -> list[str]:
    empty = [key for key in ("auc", "ne", "calibration") if values[key] is None]
    if not empty:
        return []
    weighted = rows.labels if rows.weights is None else rows.labels[rows.weights > 0]
    side = "positive" if weighted.any() else "negative"
    return [
        f"{name}: {', '.join(empty)} not computed: all {len(weighted)} observed rows are {side}"
    ]


def _few_note(values: Mapping[str, Value], positives: int, rarer: int, name: str) -> str:
    what = "positive" if rarer == positives else "negative"
    rests = f"{name}: auc rests on {rarer} {what} {'row' if rarer == 1 else 'rows'}"
    low, high = values["auc_low"], values["auc_high"]
    if low is None:
        return f"{rests}, too few for an interval; evaluate more rows"
    return f"{rests}, so even its 95 % interval ({low:.3f} to {high:.3f}) is rough"


def _group_note(grouped: GroupedAuc, rows: int, name: str) -> str:
    if grouped.value is None:
        return f"{name}: gauc not computed: none of {grouped.all_groups:,} groups has both classes"
    return (
        f"{name}: gauc rests on {grouped.groups:,} of {grouped.all_groups:,} groups "
        f"({grouped.rows:,} of {rows:,} rows); the others have one class only"
    )
