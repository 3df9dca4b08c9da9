"""Values that are 0 or more: seconds watched, spend."""

from typing import ClassVar

import numpy as np

from mmoe.metrics.columns import ROWS, Column
from mmoe.metrics.observed import ObservedRows, first_row
from mmoe.metrics.ranking import normalised_gini
from mmoe.metrics.task_kinds.base import LabelColumn, TaskMetrics
from mmoe.metrics.task_kinds.regression import Regression


class Value(Regression):
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


class WatchTime(Value):
    """Seconds watched, 0 where nothing was."""

    called: ClassVar = "a watch time"


class Ziln(Value):
    """Value that is mostly 0 and else has a long tail."""

    called: ClassVar = "a value of kind ziln"


class D2Q(WatchTime):
    """Seconds watched, learnt as a quantile and judged as seconds."""
