"""Tasks that are trained by comparing rows of a group: scores, and JRC's probabilities."""

from typing import Any, ClassVar

from mmoe.metrics.columns import Column, count
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.task_kinds.base import TaskMetrics
from mmoe.metrics.task_kinds.binary import Binary

# What judges a prediction as a probability
_OF_PROBABILITIES = ("logloss", "ne", "calibration", "ece", "oracle_logloss")


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
