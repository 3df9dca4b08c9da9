"""columns.json: what the training rows were like, learnt once and kept with the run."""

from collections.abc import Mapping

import numpy as np

from mmoe.alarms import TrainingColumns, leaks_in
from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.columns import columns_of
from mmoe.datasets.rows.encoded import EncodedData, EncodedLabels
from mmoe.datasets.rows.repeats import Repeats
from mmoe.datasets.values.hashing import mix64
from mmoe.metrics.task_kinds import kind_of
from mmoe.parallel import rank
from mmoe.run.atomic_files import write_json
from mmoe.run.directory import RunDirectory
from mmoe.train.alarms.copies import alarm_of_copies

# Where the keys of a split are not counted
_ROWS_OF_A_KEY = 10


def learn_columns(
    run: RunDirectory,
    config: RunConfig,
    encoder: FeatureEncoder,
    rows: EncodedData | None,
    repeats: Repeats | None = None,
) -> TrainingColumns | None:
    """Returns what the run knows of its training rows, on rank 0; writes it where it is new.

    Args:
        run: Whose folder this process may write into.
        config: Of the run.
        encoder: Fitted.
        rows: Sampled training rows with labels; None where there are none: a stream that was read
            for its encoder in an earlier process.
        repeats: What was counted of rows that come more than once.
    """
    if rank() > 0:
        return None
    stored = run.training_columns()
    if stored is not None or rows is None or rows.labels is None:
        return stored
    columns = list(columns_of(rows.features, encoder, of_training=True))
    labels = rows.labels
    found = [*alarm_of_copies(repeats, config)]
    found += leaks_in(
        columns, labels.labels_NT, labels.observed_NT, tasks_of(config), halves(len(rows))
    )
    learnt = TrainingColumns.of(
        columns,
        labels.labels_NT,
        labels.observed_NT,
        events_of(config),
        judged_by=independent_rows(config, labels),
        alarms=found,
    )
    write_json(run.columns_file, learnt.as_dict())
    return learnt


def tasks_of(config: RunConfig) -> list[tuple[str, bool]]:
    """Lists the tasks: name, and whether labels are 0 and 1."""
    return [(task.name, kind_of(task.kind).is_event) for task in config.tasks]


def events_of(config: RunConfig, *, trained: bool = False) -> Mapping[str, int]:
    """Returns the places of the tasks whose labels are 0 and 1, by name; `trained`: of weight."""
    return {
        task.name: t
        for t, task in enumerate(config.tasks)
        if kind_of(task.kind).is_event and (task.weight or not trained)
    }


def independent_rows(config: RunConfig, labels: EncodedLabels) -> int:
    """Counts rows that say something of their own about how columns are distributed.

    A split by key puts all rows of a user on one side, and what is true of the user with them: then
    users count. Other splits have the same users on both sides.
    """
    split, groups_N = config.data.split, labels.groups_N
    if split.by != "hash":
        return len(labels)
    if groups_N is not None and split.column == config.data.group_column:
        return len(np.unique(groups_N))
    return max(len(labels) // _ROWS_OF_A_KEY, 1)


def halves(rows: int) -> np.ndarray:
    """Returns which half each row belongs to, bool."""
    return (mix64(np.arange(rows, dtype=np.uint64)) & np.uint64(1)).astype(bool)
