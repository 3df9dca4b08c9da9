"""Maturity of labels: those that can still change, how they count, and how many are masked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature, RunConfig, TaskConfig, TimeUnit
from mmoe.config.data import TimeConfig, microseconds, moment_of
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.locations import find_column, first_true, place
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_text, pc
from mmoe.datasets.values.datetimes import local_datetimes, unit_by_size

STEPS = 2048
"""Steps that a window is cut into: counts of them are exact in chunks of any size."""
# Below, what a fit says of the rarest delays is chance
_FEWEST = 20
# A row's event counts 1/F times; beyond five, a single row would say too much
LEAST_SHARE = 0.2


@dataclass(frozen=True)
class DelayCurve:
    """F, the share of a window's events that comes within each of its steps, or before."""

    window: int  # microseconds
    shares_J: np.ndarray  # float64, ascending to 1

    def at(self, ages_N: np.ndarray) -> np.ndarray:
        """Returns F(age), float64 [N]: 0 before the row, 1 from the window's end on."""
        steps_N = step_of(ages_N, self.window)
        return np.where(steps_N < 0, 0.0, self.shares_J[np.clip(steps_N, 0, STEPS - 1)])


def step_of(micros_N: np.ndarray, window: int) -> np.ndarray:
    """Returns the step of each delay or age: negative before 0, `STEPS` beyond the window."""
    width = max(-(-window // STEPS), 1)  # rounded up, so that the steps reach the window's end
    return np.where(micros_N > window, STEPS, np.minimum(micros_N // width, STEPS - 1))


class DelayFit:
    """Estimates a `DelayCurve` from the events that have come, chunk by chunk.

    Young rows show short delays only, so delays are truncated: one of d is seen where the row's age
    a is d or more. The product-limit estimator for that, Kaplan–Meier's with time run backwards, is
    `F(j) = Π_{k>j} (1 − n_k / #{i: d_i ≤ k ≤ a_i})` with n_k events at step k. It takes rows with
    an event alone, so it asks nothing of how often events come; only that their delay has nothing
    to do with when the row happened.

    Source: Lagakos, Barraj and De Gruttola, "Nonparametric analysis of truncated survival data,
        with application to AIDS" (Biometrika 75, 1988), section 3.

    Args:
        window: Microseconds; later events do not count.

    Example:
        >>> fit = DelayFit(window=4_000)
        >>> old, young = np.full(40, 9_000), np.full(10, 1_000)
        >>> fit.add(np.array([500] * 20 + [3_000] * 20), old)
        >>> fit.add(np.full(10, 500), young)  # say nothing of how many come later
        >>> round(float(fit.finish("log.csv", "buy").at(np.array([1_000]))[0]), 3)
        0.5
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.events_J = np.zeros(STEPS, np.int64)
        self.leaving_J = np.zeros(STEPS + 1, np.int64)  # by the last step that their row sees

    def add(self, delays_P: np.ndarray, ages_P: np.ndarray) -> None:
        """Counts more events: their delays and the ages of their rows, microseconds."""
        delays, ages = step_of(delays_P, self.window), step_of(ages_P, self.window)
        mine = delays < STEPS
        self.events_J += np.bincount(delays[mine], minlength=STEPS)
        last = np.where(ages_P >= self.window, STEPS, ages)
        self.leaving_J += np.bincount(last[mine], minlength=STEPS + 1)

    @property
    def is_enough(self) -> bool:
        """Whether so many rows with an event are as old as the window that `finish` answers."""
        return int(self.leaving_J[STEPS]) >= _FEWEST

    def finish(self, origin: str, task: str) -> DelayCurve:
        """Returns the estimate.

        Raises:
            ValueError: Too few rows with an event are as old as the window.
        """
        if not self.is_enough:
            grown = int(self.leaving_J[STEPS])
            raise ValueError(
                f"{origin}: task {task!r}: immature is weight, but only {grown} training rows that "
                f"are older than matures_after have an event, and {_FEWEST} are needed to tell how "
                "long events take; give more rows, shorten matures_after, or set immature: mask"
            )
        left_J = np.concatenate([[0], np.cumsum(self.leaving_J)[: STEPS - 1]])
        at_risk_J = np.cumsum(self.events_J) - left_J
        stays_J = 1 - self.events_J / np.maximum(at_risk_J, 1)
        shares_J = np.ones(STEPS)
        shares_J[:-1] = np.cumprod(stays_J[:0:-1])[::-1]
        return DelayCurve(self.window, shares_J)


MISSING = np.iinfo(np.int64).max
"""Stands where an event has no time."""


def row_times(table: pa.Table, time: TimeConfig, origin: str) -> np.ndarray:
    """Reads when each row happened.

    Timestamps, dates, ISO 8601 text, text of `time.format`, and numbers since 1970; UTC where no
    zone is given.

    Args:
        table: N rows.
        time: The column, and how it is read.
        origin: Starts error messages.

    Returns:
        int64 [N], microseconds since 1970.

    Raises:
        ValueError: The column is not there, or a cell is empty or no datetime; names the row.

    Example:
        >>> table = pa.table({"at": ["1970-01-01T00:00:01", "1970-01-02"]})
        >>> row_times(table, TimeConfig(column="at"), "log.csv").tolist()
        [1000000, 86400000000]
    """
    assert time.column is not None, "a run without it has no labels that mature"
    times_N = _micros(table, time.column, time, origin, "data.time")
    if (row := first_true(times_N == MISSING)) is not None:
        raise ValueError(
            f"{place(table, origin, row)}: column {time.column!r} (of data.time) is empty, but "
            "matures_after needs every row's time; mend the cell, or drop the row"
        )
    return times_N


def _micros(table: pa.Table, name: str, time: TimeConfig, origin: str, used_by: str) -> np.ndarray:
    column = find_column(table, name, origin, used_by)
    unit = time.unit
    if unit is None and time.format is None:
        unit = _unit_by_size(column, f"{origin}: column {name!r} (of {used_by})")
    reading = DatetimeFeature(
        name="time", column=name, unit=unit, format=time.format, parts=["day"]
    )
    moments = local_datetimes(table, reading, origin, used_by).cast(pa.int64())
    return pc.fill_null(moments, MISSING).to_numpy()


def _unit_by_size(column: pa.ChunkedArray, where: str) -> TimeUnit | None:
    """The unit that all numbers of a column are in; None: it holds no numbers."""
    if is_text(column.type):  # as other files than those of training are read
        first = text.blank_to_null(column).drop_null()[:1]
        if text.to_reals(first).null_count:
            return None
        column = text.to_reals(column)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return None
    if (unit := unit_by_size(ends["min"], ends["max"])) is not None:
        return unit
    raise ValueError(
        f"{where} holds {ends['min']} to {ends['max']}, numbers that are seconds, milli-, micro- "
        "or nanoseconds since 1970 of no usual year; set data.time.unit (s, ms, us or ns), or "
        "data.time.format, such as %Y%m%d"
    )


@dataclass(frozen=True, kw_only=True)
class Maturity:
    """Time at which the labels of a run were collected."""

    as_of: int  # microseconds since 1970
    # Of tasks with `immature: weight`
    curves: Mapping[str, DelayCurve] = field(default_factory=dict)
    # Young rows of these tasks count, as in training; False: no young row does
    weighs: bool = False
    # In training a task may have no label but those of young rows, as long as another one has some:
    # it stays as it was, which takes a run that goes on with it
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
    """Rows of one task whose label may change."""

    young_N: np.ndarray  # bool
    # bool, where an event is there, and had come by `as_of`; None: as the label says
    happened_N: np.ndarray | None = None
    # float64, the share of events that have come at such an age; None: none counts
    share_N: np.ndarray | None = None

    def observed(self) -> np.ndarray:
        """Returns the rows whose labels count, bool [N]: old ones, and young ones with a weight.

        By age alone: whether the event has come must not decide, or it would predict itself.
        """
        if self.share_N is None:
            return ~self.young_N
        return ~self.young_N | (self.share_N >= LEAST_SHARE)

    def known(self, values_N: np.ndarray) -> np.ndarray:
        """Returns the labels as they were known by `as_of`: without events that came later."""
        if self.happened_N is None:
            return values_N
        return np.where(self.young_N & ~self.happened_N, 0.0, values_N)

    def trained(self, values_N: np.ndarray) -> np.ndarray:
        """Returns the labels to learn: of a young row an event counts 1/F times.

        F is the share of events that have come at such an age. The loss of this label is that of
        the final one in expectation: `E[Z/F] = P(Y = 1)`, and cross-entropy is linear in the label.
        """
        if self.share_N is None:
            return values_N
        return values_N / np.where(self.young_N & self.observed(), self.share_N, 1.0)


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
    used_by = f"happened_at of task {task.name!r}"
    happened_N = _micros(table, task.happened_at, time_of(config), origin, used_by)
    there_N = happened_N != MISSING
    delays_N = np.where(there_N, happened_N, 0) - (maturity.as_of - ages_N)
    early_N = there_N & (delays_N < 0)
    if (row := first_true(early_N)) is not None:
        raise ValueError(
            f"{place(table, origin, row)}: column {task.happened_at!r} "
            f"(happened_at of task {task.name!r}) is before the row's time; mend the cell, or drop "
            "the row"
        )
    return np.where(there_N, delays_N, MISSING)


def time_of(config: RunConfig) -> TimeConfig:
    """Returns the column of times of a run whose labels mature."""
    time = config.data.row_time
    assert time is not None, "a config with matures_after has one"
    return time


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
        ...     "data": {"time": {"column": "at"}}, "features": [{"kind": "numeric", "name": "x"}],
        ...     "tasks": [{"name": "buy", "label": "buy", "matures_after": "1d"}]})
        >>> log = pa.table({"at": ["2024-01-01", "2024-01-04"]})
        >>> moment_text(maturity_of(config, [(log, "log.csv")]).as_of)
        '2024-01-04T00:00:00'
    """
    if not config.delayed_tasks:
        return None
    time, origin, ends = time_of(config), "data", []
    for table, origin in tables:
        times_N = row_times(table, time, origin)
        ends += [int(times_N.min()), int(times_N.max())] if len(times_N) else []
    if not ends:
        return Maturity(as_of=0 if as_of is None else moment_of(as_of))  # of no row
    oldest = min(ends)
    ends += [] if newest is None else [newest]
    moment = max(ends) if as_of is None else moment_of(as_of)
    begins = f"{origin}: column {time.column!r} (of data.time) begins with {moment_text(oldest)}"
    if moment < oldest:
        raise ValueError(
            f"{begins}, after as_of ({moment_text(moment)}), so no label is known; set as_of to "
            "when the labels were collected, or leave it out"
        )
    for task in config.delayed_tasks if to_train else ():
        assert task.matures_after is not None
        if moment - oldest < microseconds(task.matures_after):
            raise ValueError(
                f"{begins}, and labels are as of {moment_text(moment)}, so no row is as old as "
                f"{task.matures_after} (matures_after of task {task.name!r}) and every label would "
                "be masked; shorten matures_after, give older rows, or set as_of where labels were "
                "collected later"
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


Masked = dict[str, dict[str, dict[str, int]]]
"""Split → task → labels that are `masked`, `left`, and of those left `weighted`."""

_SPLIT_ROWS = {"train": "training", "validation": "validation", "test": "test"}


def masked_counts(config: RunConfig, labels: EncodedLabels) -> dict[str, dict[str, int]]:
    """Counts labels of each task whose labels mature."""
    counts = {}
    for t, task in enumerate(config.tasks):
        if task.matures_after is None or labels.young_NT is None:
            continue
        young_N, observed_N = labels.young_NT[:, t], labels.observed_NT[:, t]
        counts[task.name] = {
            "masked": int((young_N & ~observed_N).sum()),
            "left": int(observed_N.sum()),
            "weighted": int((young_N & observed_N).sum()),
        }
    return counts


class MaskedFit:
    """Adds up `masked_counts` of splits, chunk by chunk."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.found: Masked = {}

    def add(self, split: str, labels: EncodedLabels) -> None:
        """Counts labels of more rows of a split."""
        for task, counts in masked_counts(self.config, labels).items():
            mine = self.found.setdefault(split, {}).setdefault(task, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                mine[name] += count


def describe_masked(config: RunConfig, masked: Masked, as_of: str | None) -> Iterator[str]:
    """Yields a line a task on what is masked, and a warning for each split that loses most."""
    for task in config.delayed_tasks:
        mine = {split: counts[task.name] for split, counts in masked.items() if task.name in counts}
        shares = [
            f"{c['masked']:,} of {c['masked'] + c['left']:,} {_SPLIT_ROWS[split]}"
            + (f" ({c['weighted']:,} young ones weighted)" if c["weighted"] else "")
            for split, c in mine.items()
        ]
        yield (
            f"{task.name}: labels of rows younger than {task.matures_after} as of {as_of} are "
            f"masked: {', '.join(shares)}"
        )
        for split, counts in mine.items():
            line = describe_most(task, counts, f"the {_SPLIT_ROWS[split]} rows", split != "train")
            if line is not None:
                yield line


def describe_most(
    task: TaskConfig, counts: Mapping[str, int], rows: str, judge: bool = True
) -> str | None:
    """Returns a warning where more than half of some rows' labels are masked, else None.

    Args:
        task: Whose labels they are.
        counts: `masked` and `left`.
        rows: What the rows are called.
        judge: They give metrics; False: they train.
    """
    there = counts["masked"] + counts["left"]
    if 2 * counts["masked"] <= there:
        return None
    share = "all" if not counts["left"] else f"{100 * counts['masked'] / there:.0f} %"
    learnt = f"it is learnt from {'the others alone' if counts['left'] else 'no row here'}"
    little = f"its metrics there say {'little' if counts['left'] else 'nothing'}"
    return (
        f"warning: {task.name}: {share} of the labels of {rows} are masked, as these rows are "
        f"younger than {task.matures_after} (matures_after): "
        f"{little if judge else learnt}; {_MEND}"
    )


_MEND = (
    "split by random or hash, or by days that are old enough, or set data.time.as_of where labels "
    "were collected later than the newest row"
)


def refuse_nothing_left(config: RunConfig, masked: Masked, origin: str) -> None:
    """Refuses validation rows that cannot choose a checkpoint, since all their labels are masked.

    Raises:
        ValueError: No task that training.monitor watches has a label left there.
    """
    counts = masked.get("validation", {})
    watched = config.training.monitor.rpartition(".")[0]
    tasks = [task for task in config.tasks if watched in ("mean", task.name)]
    empty = [
        task
        for task in tasks
        if task.name in counts and counts[task.name]["masked"] and not counts[task.name]["left"]
    ]
    if empty and len(empty) == len(tasks):
        raise ValueError(
            f"{origin}: all validation rows are younger than {empty[0].matures_after} "
            f"(matures_after of task {empty[0].name!r}), so training.monitor "
            f"{config.training.monitor} could not choose a checkpoint; {_MEND}"
        )
