"""The rows of a comparison: read once, for all models and seeds."""

from dataclasses import dataclass, replace

import numpy as np

from mmoe.config import RunConfig
from mmoe.datasets.files.fingerprint import print_data
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.sources import at_versions, generated_splits, load_splits
from mmoe.datasets.rows.splits import Splits
from mmoe.datasets.stream import wants_stream
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.task_kinds import kind_of
from mmoe.metrics.task_kinds.base import observed_rows
from mmoe.train.measure import row_weights
from mmoe.train.prepare import PreparedData, prepare, refuse_change


@dataclass(frozen=True, kw_only=True)
class ComparedRows:
    """Splits as tables, for simple models, and encoded."""

    config: RunConfig
    splits: Splits
    prepared: PreparedData

    @property
    def test_labels(self) -> EncodedLabels:
        """Labels of the test rows."""
        held = self.prepared.test.held
        assert held is not None and held.labels is not None, "rows in memory carry labels"
        return held.labels

    def shared(self, config: RunConfig) -> PreparedData | None:
        """Returns the encoded rows for a model's run; None: its labels differ (ESMM)."""
        return self.prepared if config.trained_tasks == self.config.trained_tasks else None

    def judged(self, t: int, predictions_N: np.ndarray) -> ObservedRows:
        """Returns the test rows of task t that count, with predictions for them.

        Raises:
            ValueError: A prediction is none of such a task.
        """
        task, labels = self.config.tasks[t], self.test_labels
        return observed_rows(
            kind_of(task.kind),
            labels.labels_NT[:, t],
            predictions_N,
            labels.observed_NT[:, t],
            weights=row_weights(task, labels, t),
            name=task.name,
        )


def read_rows(config: RunConfig) -> ComparedRows:
    """Reads, splits and encodes the rows that all models are compared on.

    Args:
        config: With absolute paths.

    Raises:
        ValueError: Anything is wrong with the data, or it is too large to be held in memory.
    """
    if wants_stream(config):
        raise ValueError(
            f"{config.name}: compare holds all rows in memory, for logistic regression and trees, "
            "but these are streamed (data.input, data.streaming.above_mb); say --set "
            "data.input=memory where there is room, or give fewer rows with --data"
        )
    splits = generated_splits(config)
    data = print_data(config, splits)
    if splits is None:
        splits = load_splits(at_versions(config, data.versions))
        refuse_change(config, data)
    prepared = replace(prepare(config, splits=splits), data=data)
    return ComparedRows(config=config, splits=splits, prepared=prepared)
