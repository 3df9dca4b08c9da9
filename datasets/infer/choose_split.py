"""How the rows are split: into past and future where a column is the event's time."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import SplitConfig
from mmoe.datasets.infer.guess_tasks import GuessedTask
from mmoe.datasets.infer.guess_time import guess_time, time_like
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.rows.splits import assign_splits

_SEEDS = 50  # split seeds tried until each split has both classes of each label


@dataclass(frozen=True)
class ChosenSplit:
    """A split, its seed, the column that holds the event's time, and the reason."""

    config: SplitConfig
    seed: int
    time_column: str | None
    reason: str


def choose_split(
    table: pa.Table,
    tasks: list[GuessedTask],
    profiles: list[ColumnProfile],
    origin: str,
) -> ChosenSplit:
    """Splits by time if there is a time and training then has both classes, else at random."""
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
            reason = f"{profile.name!r} holds {why}: train on the past, test on the future"
            return ChosenSplit(split, 1, profile.name, reason)
        complaint = f"not by time ({profile.name!r} holds {why}): {lacking}; "
    split = SplitConfig()
    if table.num_rows < 3:
        raise ValueError(f"{origin}: {table.num_rows} row(s) cannot be split into three parts")
    seed, full = _choose_seed(table, tasks, split, origin)
    others = ", ".join(repr(profile.name) for profile in profiles if time_like(profile))
    no_time = f"no column holds each event's time (not {others}); "
    no_time = no_time if others else "no column holds times; "
    reason = f"{complaint or no_time}rows drawn at random"
    if not full:
        reason += "; too few rows for both classes of each label in every part"
    return ChosenSplit(split, seed, found[0].name if found else None, reason)


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
