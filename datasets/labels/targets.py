"""Targets: labels as a model learns them, by statistics of the training rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import LabelSpec, RunConfig, TaskConfig
from mmoe.config.json_files import Stored
from mmoe.config.tasks import D2QTask
from mmoe.datasets.features.codec import Section
from mmoe.datasets.features.domains import domain_keys, exists_in
from mmoe.datasets.features.fit_numbers import bucket_edges
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.labels.maturity import Maturity
from mmoe.datasets.rows.encoded import EncodedLabels, RowLink
from mmoe.datasets.rows.locations import first_true, place
from mmoe.datasets.values.columns import to_numbers
from mmoe.datasets.values.hashing import mix64

WATCH_QUANTILES = "watch_quantiles"
SAMPLE = 262_144  # rows that tables are made of: 8,700 a group of 30
KNOTS = 1000  # of a group: a quantile is told to a thousandth


@dataclass(frozen=True, eq=False)
class WatchQuantiles:
    """Empirical distributions of watch time, one for each group of durations.

    With F_g the distribution function of group g, ties counting half:
    `quantile = F_g(watch)`, and back `watch = F_g⁻¹(quantile)`, linear between what was seen.

    Example:
        >>> watch = np.array([1.0, 2, 3, 4, 10, 20, 30, 40])
        >>> duration = np.array([5.0] * 4 + [60.0] * 4)
        >>> table = WatchQuantiles.fit(watch, duration, groups=2)
        >>> table.quantiles(np.array([2.0, 20.0, 99.0]), np.array([5.0, 60.0, 60.0])).tolist()
        [0.375, 0.375, 1.0]
        >>> table.watch(np.array([0.375, 0.5]), np.array([5.0, 60.0])).tolist()
        [2.0, 25.0]

    Source: Zhan et al., "Deconfounding duration bias in watch-time prediction for video
        recommendation" (KDD 2022), section 4.2.
    """

    edges: np.ndarray  # the longest duration of each group but the last, rising, float64
    # For each group watch times, rising, each of the same share of its rows; float64
    knots: Sequence[np.ndarray]

    @classmethod
    def fit(cls, watch_N: np.ndarray, duration_N: np.ndarray, groups: int) -> "WatchQuantiles":
        """Makes groups of about as many rows each, and their distributions.

        Args:
            watch_N: Watch times of N ≥ 1 rows.
            duration_N: Of the same rows.
            groups: At most; rows of one duration are in one group, and a duration of more than
                1 / groups of the rows has one of its own.
        """
        values, counts = np.unique(duration_N, return_counts=True)
        edges = values if len(values) <= groups else bucket_edges(values, counts, groups)
        edges = edges[edges < values[-1]]
        group_N = np.searchsorted(edges, duration_N, side="left")
        knots = []
        for group in range(len(edges) + 1):
            mine = np.sort(watch_N[group_N == group])
            if len(mine) > KNOTS:
                mine = np.quantile(mine, (np.arange(KNOTS) + 0.5) / KNOTS)
            knots.append(mine)
        return cls(edges, knots)

    def quantiles(self, watch_N: np.ndarray, duration_N: np.ndarray) -> np.ndarray:
        """Returns the quantile of each watch time within its group, float64 from 0 to 1."""
        found_N = np.zeros(len(watch_N))
        for rows, knots in self._groups(duration_N):
            below = np.searchsorted(knots, watch_N[rows], side="left")
            up_to = np.searchsorted(knots, watch_N[rows], side="right")
            found_N[rows] = (below + up_to) / 2 / len(knots)
        return found_N

    def watch(self, quantile_N: np.ndarray, duration_N: np.ndarray) -> np.ndarray:
        """Returns the watch time at each quantile of its group, float64."""
        found_N = np.zeros(len(quantile_N))
        for rows, knots in self._groups(duration_N):
            at = (np.arange(len(knots)) + 0.5) / len(knots)
            found_N[rows] = np.interp(quantile_N[rows], at, knots)
        return found_N

    def _groups(self, duration_N: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        group_N = np.searchsorted(self.edges, duration_N, side="left")
        each = [(np.flatnonzero(group_N == g), knots) for g, knots in enumerate(self.knots)]
        return [(rows, knots) for rows, knots in each if len(rows)]


class WatchQuantilesEntry(Stored):
    """One task's tables in encoder.json."""

    edges: list[float]
    knots: Annotated[list[Annotated[list[float], Field(min_length=1)]], Field(min_length=1)]


class WatchQuantilesSection(Section):
    """Tables of tasks of kind d2q, by task."""

    name = WATCH_QUANTILES
    entry = WatchQuantilesEntry

    def write(self, rule: WatchQuantiles, folder: Path, stem: str) -> Any:
        """Returns the tables as lists."""
        return {"edges": rule.edges.tolist(), "knots": [knots.tolist() for knots in rule.knots]}

    def read(self, entry: Any, folder: Path) -> WatchQuantiles:
        """Reads what `write` wrote."""
        if len(entry["knots"]) != len(entry["edges"]) + 1:
            raise ValueError(
                f"{WATCH_QUANTILES}: expected a list of knots more than there are edges"
            )
        knots = [np.asarray(of_group, np.float64) for of_group in entry["knots"]]
        return WatchQuantiles(np.asarray(entry["edges"], np.float64), knots)

    def marks(self, rules: dict[str, WatchQuantiles]) -> Iterator[bytes | memoryview]:
        """Yields where groups end; quantiles may differ in their last bits."""
        for name, rule in rules.items():
            yield repr((name, rule.edges.tolist())).encode()


class WatchQuantilesFit:
    """Samples watch times and durations of training rows, chunk by chunk.

    Of up to `SAMPLE` rows a task all are taken, of more a uniform sample, which depends on the
    order of the rows alone, never on how they are cut into chunks.

    Args:
        config: Its tasks of kind d2q.
        origin: What the user calls the data; starts error messages.
        maturity: As for `encode_labels`; labels that can still change are left out.
    """

    def __init__(self, config: RunConfig, origin: str, maturity: Maturity | None = None) -> None:
        self.config, self.origin, self.maturity = config, origin, maturity
        self.tasks = d2q_tasks(config)
        self._seen = dict.fromkeys(self.tasks, 0)
        self._held: dict[int, np.ndarray] = {t: np.zeros((0, 3)) for t in self.tasks}

    def add(self, table: pa.Table) -> None:
        """Takes more training rows."""
        if not self.tasks:
            return
        labels = encode_labels(self.config, table, self.origin, maturity=self.maturity)
        for t, task in self.tasks.items():
            rows = np.flatnonzero(labels.observed_NT[:, t])
            durations_N = durations(task, table, self.origin, self.config)
            numbers = np.arange(self._seen[t], self._seen[t] + len(rows), dtype=np.uint64)
            self._seen[t] += len(rows)
            # 53 bits of the draw: float64 holds them exactly
            draws = (mix64(numbers) >> np.uint64(11)).astype(np.float64)
            watch = labels.labels_NT[rows, t].astype(np.float64)
            held = np.concatenate(
                [self._held[t], np.stack([draws, watch, durations_N[rows]], axis=1)]
            )
            if len(held) > SAMPLE:
                held = held[np.sort(np.argsort(held[:, 0], kind="stable")[:SAMPLE])]
            self._held[t] = held

    def check(self, table: pa.Table) -> None:
        """Refuses bad durations in rows that do not train, before training instead of after it."""
        for task in self.tasks.values():
            durations(task, table, self.origin, self.config)

    def finish(self) -> dict[str, WatchQuantiles]:
        """Returns the tables by task; those without a label are left out: they are refused."""
        return {
            task.name: WatchQuantiles.fit(held[:, 1], held[:, 2], task.groups)
            for (t, task), held in zip(self.tasks.items(), self._held.values(), strict=True)
            if len(held)
        }


def d2q_tasks(config: RunConfig) -> dict[int, D2QTask]:
    """Returns the tasks of kind d2q by their places."""
    return {t: task for t, task in enumerate(config.tasks) if isinstance(task, D2QTask)}


def durations(task: D2QTask, table: pa.Table, origin: str, config: RunConfig) -> np.ndarray:
    """Reads the durations of a table's rows, float64, all above 0.

    In domains where there is no such task they are 1: nothing is made of them.

    Raises:
        ValueError: One is missing, 0, negative or infinite; names the row.
    """
    used_by = f"duration of task {task.name!r}"
    durations_N = to_numbers(table, task.duration, origin, used_by)
    exists_N = exists_in(task, domain_keys(config, table, origin)) if task.domains else None
    if exists_N is not None:
        durations_N = np.where(exists_N, durations_N, 1.0)
    row = first_true(~((durations_N > 0) & np.isfinite(durations_N)))
    if row is not None:
        came = "empty" if np.isnan(durations_N[row]) else f"{durations_N[row]:g}"
        raise ValueError(
            f"{place(table, origin, row)}: column {task.duration!r} ({used_by}) is {came}, "
            "expected a number above 0; mend the cell, or drop the row"
        )
    return durations_N


@dataclass(frozen=True)
class WatchLink:
    """Turns predicted quantiles of N rows into watch times."""

    table: WatchQuantiles  # the distributions
    duration_N: np.ndarray  # of the rows, float64

    def rows(self, rows: slice | np.ndarray) -> "WatchLink":
        """Returns the link of some of the rows."""
        return WatchLink(self.table, self.duration_N[rows])

    def joined(self, others: Sequence["WatchLink"]) -> "WatchLink":
        """Returns the link of these rows and the others' after them."""
        each = [link.duration_N for link in (self, *others)]
        return WatchLink(self.table, np.concatenate(each))

    def targets_of(self, watch_N: np.ndarray) -> np.ndarray:
        """Computes the quantiles of watch times, float64."""
        return self.table.quantiles(watch_N.astype(np.float64), self.duration_N)

    def of(self, quantile_N: np.ndarray) -> np.ndarray:
        """Computes the watch times, float32."""
        return self.table.watch(quantile_N.astype(np.float64), self.duration_N).astype(np.float32)


LABELS = "labels"
_BLOCK = 8192
_IDENTITY = (0.0, 1.0)


class LabelEntry(Stored):
    """One task's `LabelSpec` in encoder.json."""

    center: float
    scale: Annotated[float, Field(gt=0)]
    mean: float
    deviation: float
    positive: float
    log_mean: float
    log_deviation: float
    shares: list[float]


class LabelsSection(Section):
    """Label statistics by task."""

    name = LABELS
    entry = LabelEntry
    rule = LabelSpec
    tells_apart = False


@dataclass
class _Sums:
    """Weighted sums of labels seen chunk by chunk.

    They are taken block by block, so the same rows give the same bits however they are cut.
    """

    levels: np.ndarray  # labels that are counted one by one, rising
    logs: bool  # whether logarithms of labels above 0 are wanted
    first: float | None = None  # the first label: squares are taken of distances to it
    # Σ w, Σ w d, Σ w d², then the same of logarithms of labels above 0, then Σ w a level
    total: np.ndarray | None = None
    # Labels and weights of fewer rows than a block, [2, N]
    rest: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))

    def add(self, y_N: np.ndarray, weight_N: np.ndarray) -> None:
        """Adds more labels and their weights."""
        if not len(y_N):
            return
        if self.first is None:
            self.first = float(y_N[0])
        rows = np.concatenate([self.rest, [y_N, weight_N]], axis=1)
        whole = rows.shape[1] // _BLOCK * _BLOCK
        for start in range(0, whole, _BLOCK):
            self._take(*rows[:, start : start + _BLOCK])
        self.rest = rows[:, whole:].copy()

    def finish(self) -> LabelSpec | None:
        """Returns the statistics, neither centred nor scaled; None: no row counts."""
        if self.rest.shape[1]:
            self._take(*self.rest)
        if self.total is None or self.first is None or not self.total[0] > 0:
            return None
        weight, positive = float(self.total[0]), float(self.total[3])
        mean, deviation = _moments(*self.total[:3].tolist())
        log_mean, log_deviation = _moments(*self.total[3:6].tolist()) if positive else (0.0, 0.0)
        return LabelSpec(
            mean=self.first + mean,
            deviation=deviation,
            positive=positive / weight,
            log_mean=log_mean,
            log_deviation=log_deviation,
            shares=tuple((self.total[6:] / weight).tolist()),
        )

    def _take(self, y_N: np.ndarray, weight_N: np.ndarray) -> None:
        distance_N = y_N - self.first
        above_N = np.where(y_N > 0, weight_N, 0.0)
        log_N = np.log(np.where(y_N > 0, y_N, 1.0)) if self.logs else np.zeros_like(y_N)
        sums = [
            (w_N * d_N**power).sum()
            for w_N, d_N in ((weight_N, distance_N), (above_N, log_N))
            for power in range(3)
        ]
        places_N = np.searchsorted(self.levels, y_N)
        of_levels = np.bincount(places_N, weight_N, len(self.levels))[: len(self.levels)]
        found = np.concatenate([sums, of_levels])
        self.total = found if self.total is None else self.total + found


def _moments(weight: float, total: float, squares: float) -> tuple[float, float]:
    """Mean and deviation; a constant's rounding errors are none."""
    mean = total / weight
    variance = squares / weight - mean * mean
    return mean, math.sqrt(variance) if variance > 1e-14 * squares / weight else 0.0


class LabelsFit:
    """Takes statistics of the labels of training rows, chunk by chunk.

    Args:
        config: Its tasks.
    """

    def __init__(self, config: RunConfig) -> None:
        self.tasks = config.trained_tasks
        self._places = {task.name: t for t, task in enumerate(self.tasks)}
        self._sums = [
            _Sums(np.asarray(task.levels or (), np.float64), task.kind == "ziln")
            for task in self.tasks
        ]

    def add(self, labels: EncodedLabels) -> None:
        """Takes labels of more training rows."""
        for t, (task, sums) in enumerate(zip(self.tasks, self._sums, strict=True)):
            rows_N = labels.observed_NT[:, t] & (labels.weights_NT[:, t] > 0)
            if task.kind == "entire_space":  # its tower learns what follows the event
                event = self._places[task.observed_when or ""]
                rows_N = rows_N & (labels.labels_NT[:, event] > 0.5)
            y_N, weight_N = (of_NT[rows_N, t] for of_NT in (labels.labels_NT, labels.weights_NT))
            sums.add(y_N.astype(np.float64), weight_N.astype(np.float64))

    def finish(self) -> dict[str, LabelSpec]:
        """Returns the statistics by task; a task without a row that counts is left out."""
        found = {
            task.name: sums.finish() for task, sums in zip(self.tasks, self._sums, strict=True)
        }
        tasks = {task.name: task for task in self.tasks}
        return {name: _scaled(tasks[name], spec) for name, spec in found.items() if spec}


def _scaled(task: TaskConfig, label: LabelSpec) -> LabelSpec:
    center, scale = task.scaling(label)
    return replace(
        label,
        center=center,
        scale=scale,
        mean=(label.mean - center) / scale,
        deviation=label.deviation / scale,
        log_mean=label.log_mean - math.log(scale),
    )


@dataclass(frozen=True)
class TargetScale:
    """Turns targets of any rows into values in the label's units, and back.

    Example:
        >>> price = TargetScale(center=100.0, scale=20.0)
        >>> price.targets_of(np.array([90.0])).tolist(), price.of(np.array([-0.5])).tolist()
        ([-0.5], [90.0])
    """

    center: float
    scale: float

    def rows(self, rows: slice | np.ndarray) -> "TargetScale":
        """Returns the same: it is that of all rows."""
        return self

    def joined(self, others: Sequence[Any]) -> "TargetScale":
        """Returns the same, likewise."""
        return self

    def targets_of(self, labels_N: np.ndarray) -> np.ndarray:
        """Computes the targets, float64."""
        return (labels_N.astype(np.float64) - self.center) / self.scale

    def of(self, targets_N: np.ndarray) -> np.ndarray:
        """Computes the values, float32, the largest that there are where they are beyond."""
        most = float(np.finfo(np.float32).max)
        values_N = targets_N.astype(np.float64) * self.scale + self.center
        return np.clip(values_N, -most, most).astype(np.float32)


def row_links(
    config: RunConfig, rules: Mapping[str, Mapping[str, Any]], table: pa.Table, origin: str
) -> dict[int, RowLink]:
    """Makes the links of a table's rows, by the places of tasks whose targets are not labels."""
    found: dict[int, RowLink] = {}
    for t, task in d2q_tasks(config).items():
        duration_N = durations(task, table, origin, config)
        fitted = rules.get(WATCH_QUANTILES, {}).get(task.name)
        if fitted is not None:  # else no row has its label
            found[t] = WatchLink(fitted, duration_N)
    labels = rules.get(LABELS, {})
    for t, task in enumerate(config.tasks):
        spec = labels.get(task.name)
        if spec is not None and (spec.center, spec.scale) != _IDENTITY:
            found[t] = TargetScale(spec.center, spec.scale)
    return found


def with_targets(labels: EncodedLabels, links: Mapping[int, RowLink]) -> EncodedLabels:
    """Returns the labels with what tasks are trained on, where that is something else.

    Args:
        labels: Of N rows.
        links: Of the same rows, by the tasks' places; none: labels are trained on unchanged.
    """
    if not links:
        return labels
    targets_NT = labels.labels_NT.copy()
    for t, link in links.items():
        targets_NT[:, t] = np.where(
            labels.observed_NT[:, t], link.targets_of(labels.labels_NT[:, t]), 0
        )
    return replace(labels, targets_NT=targets_NT)
