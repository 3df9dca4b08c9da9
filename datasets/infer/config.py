"""A first config from the data itself: the engine of `mmoe init` and of the estimator."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from mmoe.config import (
    DataConfig,
    ExpertConfig,
    FeatureConfig,
    ModelConfig,
    RunConfig,
    SplitConfig,
    TaskConfig,
    TowerConfig,
    TrainingConfig,
)
from mmoe.datasets.infer.guess_datetimes import datetime_keys, offered_features
from mmoe.datasets.infer.guess_features import group_column, guess_feature
from mmoe.datasets.infer.guess_tasks import GuessedTask, consequence_notes, guess_task
from mmoe.datasets.infer.guess_time import guess_time, time_like
from mmoe.datasets.infer.leaks import sample_rows, too_good
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.infer.reading.column import read_column
from mmoe.datasets.rows.locations import distinct_names, visible_columns
from mmoe.datasets.rows.splits import assign_splits
from mmoe.metrics.task_kinds import first_of

_SEEDS = 50  # split seeds tried until each split has both classes of each label


@dataclass(kw_only=True)
class Reasons:
    """Why the inferred config is what it is; becomes its comments.

    Attributes:
        split: Of the split.
        group: Of data.group_column.
        features: Feature name → reason.
        tasks: Task name → reasons.
        left_out: Column and reason, in the file's order.
        offered: Column that is left out → features of which it may become one.
        sizes: Of the model's and batches' sizes.
        consequences: Task name → the task it is a consequence of.
    """

    split: str = ""
    group: str = ""
    features: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, list[str]] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    offered: dict[str, list[FeatureConfig]] = field(default_factory=dict)
    sizes: str = ""
    consequences: dict[str, str] = field(default_factory=dict)


def infer_config(
    table: pa.Table,
    labels: Sequence[str],
    *,
    name: str = "run",
    path: str | Path | None = None,
    origin: str = "data",
    rows: int | None = None,
) -> tuple[RunConfig, Reasons]:
    """Infers a config that trains as it is, from a look at every column.

    Args:
        table: All rows, or a sample of them; the labels and everything else.
        labels: Label columns, or expressions over columns; one task each, in this order.
        name: Of the run.
        path: `data.path` of the config.
        origin: What the user calls the data; starts error messages.
        rows: How many there are, where the table is a sample of them.

    Returns:
        The config, and for each of its lines the reason.

    Raises:
        ValueError: A label is missing, constant or ambiguous, or no column is left to learn from.

    Example:
        >>> table = pa.table({"user": [1, 2, 1, 2] * 10, "price": [0.5, 1.5, 2.5, 0.5] * 10,
        ...                   "row": list(range(40)), "click": [0, 1, 1, 0, 1, 0, 0, 1] * 5})
        >>> config, reasons = infer_config(table, ["click"])
        >>> [feature.name for feature in config.features], reasons.left_out
        (['user', 'price'], [('row', 'its value is different in every row')])
    """
    if table.num_rows == 0:
        raise ValueError(f"{origin}: holds no rows to look at")
    if distinct_names(table.column_names) != table.column_names:
        raise ValueError(f"{origin}: columns without a name, or with one name; rename them")
    if not labels:
        raise ValueError("labels: expected at least one label column, got none")
    rows = table.num_rows if rows is None else rows
    names = _Names()
    tasks = [guess_task(table, label, names.task(label), origin) for label in labels]
    used = {column for task in tasks for column in task.columns}
    profiles = [
        read_column(column, table[column])
        for column in visible_columns(table)
        if column not in used
    ]
    reasons = Reasons(tasks={task.task.name: task.reasons for task in tasks})
    reasons.consequences = consequence_notes(tasks)
    split, split_seed, time_column = _choose_split(table, tasks, profiles, reasons, origin)
    kept = _leave_out(table, tasks, profiles, time_column, reasons)
    features = _features(kept, names, reasons, origin)
    group = group_column(profiles)
    reasons.group = "who the rows belong to, for GAUC" if group else ""
    data = DataConfig(
        path=str(path) if path is not None else None,
        split=split,
        group_column=group.name if group else None,
    )
    config = RunConfig(
        name=names.run(name),
        split_seed=split_seed,
        data=data,
        features=features,
        tasks=[task.task for task in tasks],
        model=_model(rows),
        training=_training(rows, [task.task for task in tasks]),
    )
    about = "about " if rows > table.num_rows else ""
    reasons.sizes = f"sizes for {about}{rows} rows"
    return config, reasons


class _Names:
    """Names that a config takes, out of whatever the columns are called."""

    def __init__(self) -> None:
        self.features: set[str] = set()
        self.tasks: set[str] = set()

    def feature(self, column: str) -> str:
        return self._unique(column, "feature", self.features)

    def task(self, label: str) -> str:
        return self._unique(label, "task", self.tasks)

    @staticmethod
    def run(name: str) -> str:
        cleaned = re.sub(r"[^A-Za-z0-9_\-]+", "-", name).strip("-")
        return cleaned if re.match(r"^[A-Za-z_]", cleaned) else f"run-{cleaned}".rstrip("-")

    @staticmethod
    def _unique(column: str, kind: str, taken: set[str]) -> str:
        """ASCII letters, digits and _; distinct even where case is ignored.

        Letters lose their accents (Künstler: Kunstler). Never two underscores in a row, as in the
        names of bucket tables.
        """
        plain = unicodedata.normalize("NFKD", column.replace("ß", "ss"))
        plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
        base = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:100] or f"{kind}_{len(taken) + 1}"
        base = base if re.match(r"^[A-Za-z_]", base) else f"{kind[0]}_{base}"
        base = "mean_value" if kind == "task" and base == "mean" else base
        name, number = base, 1
        while name.lower() in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name.lower())
        return name


def _choose_split(
    table: pa.Table,
    tasks: list[GuessedTask],
    profiles: list[ColumnProfile],
    reasons: Reasons,
    origin: str,
) -> tuple[SplitConfig, int, str | None]:
    """By time if there is a time and training then has both classes, else random."""
    found = guess_time(profiles)
    complaint = ""
    if found:
        profile, why = found
        split = SplitConfig(by="time", column=profile.name, format=profile.keys.get("format"))
        try:
            split_N = assign_splits(table, split, 1, origin)
            lacking = _one_class(tasks, split_N == 0)
        except ValueError as error:
            lacking = str(error)
        if not lacking:
            reasons.split = f"{profile.name!r} holds {why}: train on the past, test on the future"
            return split, 1, profile.name
        complaint = f"not by time ({profile.name!r} holds {why}): {lacking}; "
    split = SplitConfig()
    if table.num_rows < 3:
        raise ValueError(f"{origin}: {table.num_rows} row(s) cannot be split into three parts")
    seed, full = _choose_seed(table, tasks, split, origin)
    others = ", ".join(repr(profile.name) for profile in profiles if time_like(profile))
    no_time = f"no column holds each event's time (not {others}); "
    no_time = no_time if others else "no column holds times; "
    reasons.split = f"{complaint or no_time}rows drawn at random"
    if not full:
        reasons.split += "; too few rows for both classes of each label in every part"
    return split, seed, found[0].name if found else None


def _choose_seed(
    table: pa.Table, tasks: list[GuessedTask], split: SplitConfig, origin: str
) -> tuple[int, bool]:
    """The first seed with both classes everywhere, or at least in training."""
    trainable = None
    for seed in range(1, _SEEDS + 1):
        split_N = assign_splits(table, split, seed, origin)
        if _one_class(tasks, split_N == 0):
            continue
        if not any(_one_class(tasks, split_N == part) for part in (1, 2)):
            return seed, True
        trainable = trainable or seed
    if trainable is None:
        lacking = _one_class(tasks, assign_splits(table, split, 1, origin) == 0)
        raise ValueError(f"{origin}: {lacking}, however the rows are drawn; give more rows")
    return trainable, False


def _one_class(tasks: list[GuessedTask], rows_N: np.ndarray) -> str:
    """What is wrong with these rows as training rows, or nothing."""
    for task in tasks:
        values = task.values_N[rows_N & task.observed_N]
        if not len(values):
            return f"{task.task.name!r} would have no label in training"
        if task.is_event and values.min() == values.max():
            return f"{task.task.name!r} would have one class only in training ({values[0]:g})"
    return ""


def _leave_out(
    table: pa.Table,
    tasks: list[GuessedTask],
    profiles: list[ColumnProfile],
    time_column: str | None,
    reasons: Reasons,
) -> list[ColumnProfile]:
    """The columns that are inputs; the others get their reason."""
    kept = []
    samples = [sample_rows(np.flatnonzero(task.observed_N)) for task in tasks]
    for profile in profiles:
        reason = (
            "the time that the split is made by" if profile.name == time_column else None
        ) or (_useless(profile) or too_good(table, tasks, samples, profile))
        if reason:
            reasons.left_out.append((profile.name, reason))
            offered = offered_features(profile, _Names().feature(profile.name))
            reasons.offered[profile.name] = offered
        else:
            kept.append(profile)
    return kept


def _useless(profile: ColumnProfile) -> str | None:
    if profile.missing == profile.rows:
        return "empty in every row"
    if profile.nature == "other":
        return "neither numbers, text, dates nor lists of them"
    if profile.nature != "list" and profile.distinct <= 1 and not profile.missing:
        return "the same value in every row"
    if profile.no_input:
        return profile.no_input
    if profile.unique_per_row:
        return "its value is different in every row"
    if (profile.nature == "datetime" or time_like(profile)) and datetime_keys(profile) is None:
        return (
            "a moment in time, which does not come again; kind: datetime takes its hour and weekday"
        )
    if profile.numbers_N is not None and np.isinf(profile.numbers_N).any():
        return "it holds infinity; clip it"
    return None


def _features(
    profiles: list[ColumnProfile], names: _Names, reasons: Reasons, origin: str
) -> list[FeatureConfig]:
    features = []
    for profile in profiles:
        guessed = guess_feature(profile, names.feature(profile.name))
        reasons.features[guessed.feature.name] = guessed.reason
        features.append(guessed.feature)
    if not features:
        why = (
            "; ".join(f"{column}: {reason}" for column, reason in reasons.left_out) or "none there"
        )
        raise ValueError(f"{origin}: no column is left to learn from ({why})")
    return features


def _model(rows: int) -> ModelConfig:
    """Fewer and narrower layers where there are few rows to learn them from."""
    if rows >= 100_000:
        return ModelConfig()
    if rows >= 5_000:
        return ModelConfig(
            embedding_dim=8,
            num_experts=4,
            expert=ExpertConfig(hidden=[128, 64]),
            tower=TowerConfig(hidden=[32]),
        )
    return ModelConfig(
        embedding_dim=4,
        num_experts=4,
        expert=ExpertConfig(hidden=[32]),
        tower=TowerConfig(hidden=[16]),
    )


def _training(rows: int, tasks: list[TaskConfig]) -> TrainingConfig:
    """Batches of about a hundredth of the rows, a power of two from 16 to 4096."""
    batch_size = int(2 ** np.clip(np.round(np.log2(max(rows, 1) / 100)), 4, 12))
    return TrainingConfig(
        epochs=10 if rows >= 10_000 else 20,
        batch_size=batch_size,
        eval_batch_size=max(256, batch_size),
        monitor=f"mean.{first_of(task.kind for task in tasks).headline}",
    )
