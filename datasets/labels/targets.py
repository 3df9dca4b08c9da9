"""Targets: labels as a model learns them, by statistics of the training rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import LabelSpec, RunConfig, TaskConfig
from mmoe.config.json_files import Stored
from mmoe.config.tasks import NumberTask
from mmoe.datasets.features.codec import Section
from mmoe.datasets.labels.watch_quantiles import watch_links
from mmoe.datasets.rows.encoded import EncodedLabels, RowLink

SECTION = "labels"
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

    name = SECTION
    entry = LabelEntry

    def write(self, rule: LabelSpec, folder: Path, stem: str) -> Any:
        """Returns the numbers by name."""
        return asdict(rule)

    def read(self, entry: Any, folder: Path) -> LabelSpec:
        """Reads what `write` wrote."""
        return LabelSpec(**{**entry, "shares": tuple(entry["shares"])})

    def marks(self, rules: dict[str, LabelSpec]) -> Iterator[bytes | memoryview]:
        """Yields nothing: sums differ in their last bits from machine to machine."""
        return iter(())


@dataclass
class _Sums:
    """Weighted sums of labels seen chunk by chunk.

    They are taken block by block, so the same rows give the same bits however they are cut.

    Attributes:
        levels: Labels that are counted one by one, rising.
        logs: Whether logarithms of labels above 0 are wanted.
        first: The first label: squares are taken of distances to it.
        total: Σ w, Σ w d, Σ w d², then the same of logarithms of labels above 0, then Σ w a level.
        rest: Labels and weights of fewer rows than a block, [2, N].
    """

    levels: np.ndarray
    logs: bool
    first: float | None = None
    total: np.ndarray | None = None
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
    center, scale = task.scaling(label) if isinstance(task, NumberTask) else _IDENTITY
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
    found: dict[int, RowLink] = {
        t: link for t, link in watch_links(config, rules, table, origin).items()
    }
    labels = rules.get(SECTION, {})
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
