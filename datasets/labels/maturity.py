"""Which labels can still change, since their rows are young; and what those that train count."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, TaskConfig
from mmoe.config.data import TimeConfig, microseconds, moment_of
from mmoe.datasets.labels.delays import LEAST_SHARE, DelayCurve
from mmoe.datasets.labels.times import MISSING, event_times, row_times
from mmoe.datasets.rows.locations import place


@dataclass(frozen=True, kw_only=True)
class Maturity:
    """When the labels of a run were collected.

    Attributes:
        as_of: Microseconds since 1970.
        curves: Of tasks with `immature: weight`.
        weighs: Young rows of these tasks count, as in training; False: no young row does.
        leaves_young: In training a task may have no label but those of young rows, as long as
            another one has some: it stays as it was, which takes a run that goes on with it.
    """

    as_of: int
    curves: Mapping[str, DelayCurve] = field(default_factory=dict)
    weighs: bool = False
    leaves_young: bool = False

    def weighing(self) -> "Maturity":
        """Returns the same for training rows."""
        return replace(self, weighs=True)

    def ages(self, table: pa.Table, config: RunConfig, origin: str) -> np.ndarray:
        """Returns how old each row is, int64 [N] microseconds; negative after `as_of`.

        Raises:
            ValueError: The column of times is not there, or has a cell that is no time.
        """
        return self.as_of - row_times(table, time_of(config), origin)


@dataclass(frozen=True)
class YoungRows:
    """Rows of one task whose label may change.

    Attributes:
        young_N: bool.
        happened_N: bool, where an event is there, and had come by `as_of`; None: as the label says.
        share_N: float64, the share of events that have come at such an age; None: none counts.
    """

    young_N: np.ndarray
    happened_N: np.ndarray | None = None
    share_N: np.ndarray | None = None

    def counts(self) -> np.ndarray:
        """Returns which rows count all the same: bool [N], or all False.

        By age alone: whether the event has come must not decide, or it would predict itself.
        """
        if self.share_N is None:
            return np.zeros(len(self.young_N), bool)
        return self.young_N & (self.share_N >= LEAST_SHARE)


def young_rows(
    task: TaskConfig, maturity: Maturity, ages_N: np.ndarray, table: pa.Table, config: RunConfig,
    origin: str,
) -> YoungRows:  # fmt: skip
    """Finds the rows of a task that are younger than its window."""
    assert task.matures_after is not None, "asked of tasks whose labels mature"
    young_N = ages_N < microseconds(task.matures_after)
    if not maturity.weighs or task.name not in maturity.curves:
        return YoungRows(young_N)
    delays_N = delays_of(task, maturity, ages_N, table, config, origin)
    return YoungRows(young_N, delays_N <= ages_N, maturity.curves[task.name].at(ages_N))


def delays_of(
    task: TaskConfig, maturity: Maturity, ages_N: np.ndarray, table: pa.Table, config: RunConfig,
    origin: str,
) -> np.ndarray:  # fmt: skip
    """Returns how long after its row each event came, int64 [N]; `MISSING` where none has.

    Raises:
        ValueError: An event came before its row.
    """
    assert task.happened_at is not None, "asked of tasks with immature: weight"
    happened_N = event_times(table, task.happened_at, time_of(config), origin, task.name)
    there_N = happened_N != MISSING
    delays_N = np.where(there_N, happened_N, 0) - (maturity.as_of - ages_N)
    early_N = there_N & (delays_N < 0)
    if early_N.any():
        raise ValueError(
            f"{place(table, origin, int(early_N.argmax()))}: column {task.happened_at!r} "
            f"(happened_at of task {task.name!r}) is before the row's time; mend the cell, or drop "
            "the row"
        )
    return np.where(there_N, delays_N, MISSING)


def time_of(config: RunConfig) -> TimeConfig:
    """Returns the column of times of a run whose labels mature."""
    time = config.data.row_time
    assert time is not None, "a config with matures_after has one"
    return time


class TimeSpan:
    """The oldest and newest time of rows, chunk by chunk."""

    def __init__(self, config: RunConfig) -> None:
        self.time = time_of(config)
        self.oldest: int | None = None
        self.newest: int | None = None

    def add(self, table: pa.Table, origin: str) -> None:
        """Looks at more rows.

        Raises:
            ValueError: A row has no time.
        """
        times_N = row_times(table, self.time, origin)
        if len(times_N):
            first, last = int(times_N.min()), int(times_N.max())
            self.oldest = first if self.oldest is None else min(first, self.oldest)
            self.newest = last if self.newest is None else max(last, self.newest)


def maturity_of(
    config: RunConfig,
    tables: Iterable[tuple[pa.Table, str]],
    *,
    as_of: str | None = None,
    newest: int | None = None,
    to_train: bool = False,
) -> Maturity | None:
    """Finds when the labels of rows were collected: the newest time of them all, unless given.

    Args:
        config: Tasks, and their rows' times.
        tables: All rows, in chunks, each with what the user calls it.
        as_of: As in a config.
        newest: Time of further rows, which are not among these.
        to_train: Each task needs rows that are old enough.

    Returns:
        Without curves; None where no task has `matures_after`.

    Raises:
        ValueError: A row has no time, `as_of` is before all rows, or, to train, a window is so
            long that no row is as old.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "data": {"time": {"column": "at"}},
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "buy", "label": "buy", "matures_after": "1d"}]})
        >>> log = pa.table({"at": ["2024-01-01", "2024-01-04"]})
        >>> moment_text(maturity_of(config, [(log, "log.csv")]).as_of)
        '2024-01-04T00:00:00'
    """
    if not config.delayed_tasks:
        return None
    span, origin = TimeSpan(config), "data"
    for table, origin in tables:
        span.add(table, origin)
    if span.oldest is None or span.newest is None:
        return Maturity(as_of=0 if as_of is None else moment_of(as_of))  # of no row
    last = span.newest if newest is None else max(newest, span.newest)
    moment = last if as_of is None else moment_of(as_of)
    column = f"{origin}: column {span.time.column!r} (of data.time)"
    if moment < span.oldest:
        raise ValueError(
            f"{column} begins with {moment_text(span.oldest)}, after as_of "
            f"({moment_text(moment)}), so no label is known; set as_of to when the labels were "
            "collected, or leave it out"
        )
    for task in config.delayed_tasks if to_train else ():
        assert task.matures_after is not None
        if moment - span.oldest < microseconds(task.matures_after):
            raise ValueError(
                f"{column} begins with {moment_text(span.oldest)}, and labels are as of "
                f"{moment_text(moment)}, so no row is as old as {task.matures_after} "
                f"(matures_after of task {task.name!r}) and every label would be masked; shorten "
                "matures_after, give older rows, or set as_of where labels were collected later"
            )
    return Maturity(as_of=moment)


def found_maturity(
    config: RunConfig,
    tables: Iterable[tuple[pa.Table, str]],
    newest: int | None = None,
    *,
    leaves_young: bool = False,
) -> Maturity:
    """Returns `maturity_of` for the rows of a run: data.time.as_of counts."""
    as_of = None if config.data.time is None else config.data.time.as_of
    found = maturity_of(config, tables, as_of=as_of, newest=newest, to_train=not leaves_young)
    assert found is not None, "asked of runs whose labels mature"
    return replace(found, leaves_young=leaves_young)


def moment_text(micros: int) -> str:
    """Writes microseconds since 1970 as ISO 8601, UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    return moment.replace(tzinfo=None).isoformat()


def chunks_of(table: pa.Table, origin: str) -> Iterator[tuple[pa.Table, str]]:
    """Yields a table as `maturity_of` takes it."""
    yield table, origin
