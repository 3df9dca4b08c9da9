"""Targets: labels as a model learns them, by statistics of the training rows.

Of labels that are numbers they are `t = (ψ(u) − shift) / spread` of the label in its own unit,
`u = (y − center) / scale`, with Yeo and Johnson's `ψ`, which is `u` for power 1 and `ln (1 + u)`
for power 0 and u ≥ 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import LabelSpec, RunConfig, Stored, TaskConfig, prediction_columns
from mmoe.datasets.features.codec import Section
from mmoe.datasets.labels.watch_quantiles import RowSample, watch_links
from mmoe.datasets.rows.encoded import EncodedLabels, RowLink

# A prediction goes no further beyond the labels of training than this part of their range
_MARGIN = 0.05
_RESIDUALS = 64  # groups of residuals whose means stand for all
_FEWEST = 50  # labels of which a distribution, or residuals, say something
# The rows that lie furthest from the mean: where they make up more of the variance, few rows decide
# what a squared error learns. Normal 0.09, exponential 0.22, lognormal of σ 0.75 0.35, of σ 1 0.50
_FURTHEST, _LONG_TAIL = 0.01, 0.25
_POWERS = np.arange(0, 41) / 20  # 0 to 2: each has an inverse for all numbers
_STRAIGHT = 0.3  # a power so close to 1 changes next to nothing


def curved(u_N: np.ndarray, power: float) -> np.ndarray:
    """Computes Yeo and Johnson's transform, float64.

    Args:
        u_N: Any finite numbers.
        power: 0 to 2; below 1 it draws in the upper tail, above 1 the lower one.

    Example:
        >>> curved(np.array([-1.5, 0.0, np.e - 1]), 0.0).round(3).tolist()
        [-2.625, 0.0, 1.0]

    Source: Yeo and Johnson, "A new family of power transformations to improve normality or
        symmetry" (Biometrika 87, 2000).
    """
    size_N = np.log1p(np.abs(u_N))
    of_side_N = np.where(u_N >= 0, power, 2 - power)
    safe_N = np.where(of_side_N == 0, 1.0, of_side_N)
    bent_N = np.where(of_side_N == 0, size_N, np.expm1(safe_N * size_N) / safe_N)
    return np.sign(u_N) * bent_N


def straightened(t_N: np.ndarray, power: float, most: float) -> np.ndarray:
    """Computes the inverse of `curved`; its size is at most `most`, where it would be larger."""
    of_side_N = np.where(t_N >= 0, power, 2 - power)
    safe_N = np.where(of_side_N == 0, 1.0, of_side_N)
    size_N = np.abs(t_N)
    log_N = np.where(of_side_N == 0, size_N, np.log1p(safe_N * size_N) / safe_N)
    return np.sign(t_N) * np.expm1(np.minimum(log_N, np.log1p(most)))


@dataclass(frozen=True)
class TargetScale:
    """Turns targets of any rows into values in the label's units, and back.

    With a curve the inverse of a mean is not the mean of inverses: predictions are then
    `mean_k ψ⁻¹(t + e_k)` over the residuals `e_k` of rows that were not trained on (Duan's
    smearing). Predictions stay between `low` and `high`; with a curve once there are residuals.

    Attributes:
        center: Taken off a label.
        scale: What that is divided by.
        power: Of the curve; 1: none.
        shift: Taken off the curved label.
        spread: What that is divided by.
        low: The least prediction.
        high: The largest.
        residuals: Of targets, rising, each of as many rows; none: the inverse alone.

    Example:
        >>> price = TargetScale(center=100.0, scale=20.0)
        >>> price.targets_of(np.array([90.0])).tolist(), price.of(np.array([-0.5])).tolist()
        ([-0.5], [90.0])

    Source: Duan, "Smearing estimate: a nonparametric retransformation method" (JASA 78, 1983).
    """

    center: float
    scale: float
    power: float = 1.0
    shift: float = 0.0
    spread: float = 1.0
    low: float = -np.inf
    high: float = np.inf
    residuals: tuple[float, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Whether targets are labels, and predictions may be any number."""
        return self == TargetScale(0.0, 1.0)

    @property
    def keeps_labels(self) -> bool:
        """Whether targets are the labels themselves."""
        return (self.center, self.scale, self.power) == (0.0, 1.0, 1.0)

    @property
    def is_curved(self) -> bool:
        """Whether the mean of targets is not the target of the mean."""
        return self.power != 1.0

    def rows(self, rows: slice | np.ndarray) -> "TargetScale":
        """Returns the same: it is that of all rows."""
        return self

    def joined(self, others: Sequence[Any]) -> "TargetScale":
        """Returns the same, likewise."""
        return self

    def targets_of(self, labels_N: np.ndarray) -> np.ndarray:
        """Computes the targets, float64."""
        u_N = (labels_N.astype(np.float64) - self.center) / self.scale
        return (curved(u_N, self.power) - self.shift) / self.spread if self.is_curved else u_N

    def of(self, targets_N: np.ndarray) -> np.ndarray:
        """Computes the values, float32, the nearest that there are where they are beyond."""
        most = float(np.finfo(np.float32).max)
        low, high = max(self.low, -most), min(self.high, most)
        targets_N = targets_N.astype(np.float64)
        if not self.is_curved:
            values_N = targets_N * self.scale + self.center
            return np.clip(values_N, low, high).astype(np.float32)
        if not self.residuals:  # those to come are told from predictions without a limit
            return self._straight(targets_N, -most, most).astype(np.float32)
        total_N = np.zeros(len(targets_N))
        for residual in self.residuals:  # one by one: a row's bits are its own
            total_N += self._straight(targets_N + residual, low, high)
        return np.clip(total_N / len(self.residuals), low, high).astype(np.float32)

    def _straight(self, targets_N: np.ndarray, low: float, high: float) -> np.ndarray:
        most = max(abs(low - self.center), abs(high - self.center)) / self.scale
        u_N = straightened(targets_N * self.spread + self.shift, self.power, most)
        return np.clip(u_N * self.scale + self.center, low, high)

    def unbiased(
        self, values_N: np.ndarray, labels_N: np.ndarray, weights_N: np.ndarray
    ) -> "TargetScale":
        """Returns the scale whose predictions are means, by rows that were not trained on.

        Its residuals are those of these rows; they are moved until the mean of predictions is that
        of the labels, where both differ by more than a standard error: residuals of values that
        are mostly 0 are not the same everywhere.

        Args:
            values_N: What `of` predicts of these rows without residuals.
            labels_N: Of the same rows.
            weights_N: Of the same rows, 0 or more.
        """
        some_N = weights_N > 0
        if some_N.sum() < _FEWEST:
            return replace(self, residuals=(0.0,))
        labels_N, weights_N = labels_N[some_N].astype(np.float64), weights_N[some_N]
        seen_N = self.targets_of(values_N[some_N])
        errors_N = np.sort(self.targets_of(labels_N) - seen_N)
        parts = np.array_split(errors_N, min(_RESIDUALS, len(errors_N)))
        means = np.array([part.mean() for part in parts])
        found = replace(self, residuals=tuple(means.tolist()))
        gaps_N = labels_N - found.of(seen_N)
        gap = np.average(gaps_N, weights=weights_N)
        error = np.sqrt((weights_N**2 * (gaps_N - gap) ** 2).sum()) / weights_N.sum()
        if abs(gap) <= error:
            return found
        mean = float(np.average(labels_N, weights=weights_N))

        def moved(by: float) -> TargetScale:
            return replace(self, residuals=tuple((means + by).tolist()))

        below, above = -5.0, 5.0  # in deviations of the targets
        for _ in range(30):
            middle = (below + above) / 2
            too_low = np.average(moved(middle).of(seen_N), weights=weights_N) < mean
            below, above = (middle, above) if too_low else (below, middle)
        return moved((below + above) / 2)


def limits(low: float, high: float) -> tuple[float, float]:
    """Returns the least and the largest prediction, of the least and the largest label.

    `low − m` and `high + m` with `m = 0.05 (high − low)`; labels of one sign keep it.

    Example:
        >>> limits(10.0, 110.0), limits(0.0, 100.0)
        ((5.0, 115.0), (0.0, 105.0))
    """
    margin = _MARGIN * (high - low)
    least, most = low - margin, high + margin
    return (max(least, 0.0) if low >= 0 else least), (min(most, 0.0) if high <= 0 else most)


def tail_share(labels_N: np.ndarray) -> float:
    """Returns the part of the variance that the hundredth of rows furthest from the mean makes up.

    Example:
        >>> round(tail_share(np.random.default_rng(0).normal(size=100_000)), 2)
        0.09
    """
    squares_N = (labels_N - labels_N.mean()) ** 2
    count = max(int(_FURTHEST * len(squares_N)), 1)
    total = float(squares_N.sum())
    return float(np.partition(squares_N, -count)[-count:].sum()) / total if total > 0 else 0.0


def has_long_tail(labels_N: np.ndarray) -> bool:
    """Returns whether few rows decide what a squared error of these labels learns."""
    return len(labels_N) >= _FEWEST and tail_share(labels_N) > _LONG_TAIL


def fit_scale(labels_N: np.ndarray, how: str) -> TargetScale | None:
    """Fits a curve to labels, after which they lie about as far above their mean as below it.

    Args:
        labels_N: A sample of labels, float64, not all the same.
        how: `log` (labels are 0 or more), `yeo_johnson`, or `auto`: the latter where labels have a
            long tail on one side.

    Returns:
        The scale; None: labels are better left straight.

    Example:
        >>> spend = np.exp(np.random.default_rng(0).normal(3, 1.5, 5000))
        >>> fit_scale(spend, "auto").power, fit_scale(np.arange(100.0), "auto")
        (0.0, None)
    """
    if len(labels_N) < _FEWEST or (how == "auto" and not has_long_tail(labels_N)):
        return None
    center, scale = 0.0, float(np.median(labels_N[labels_N > 0])) if (labels_N > 0).any() else 0.0
    if labels_N.min() < 0:
        center = float(np.median(labels_N))
        scale = float(np.subtract(*np.quantile(labels_N, (0.9, 0.1)))) or float(labels_N.std())
    if not 0 < scale < np.inf:
        return None
    u_N = (labels_N - center) / scale
    power = 0.0 if how == "log" else _likeliest_power(u_N)
    if how == "auto" and abs(power - 1) <= _STRAIGHT:
        return None
    bent_N = curved(u_N, power)
    spread = float(bent_N.std())
    if not 0 < spread < np.inf:
        return None
    return TargetScale(center, scale, power, float(bent_N.mean()), spread)


def _likeliest_power(u_N: np.ndarray) -> float:
    """The power after which numbers are most like normal ones (maximum likelihood)."""
    slopes = float((np.sign(u_N) * np.log1p(np.abs(u_N))).mean())
    with np.errstate(over="ignore", invalid="ignore"):
        variances = np.array([curved(u_N, power).var() for power in _POWERS])
        likelihoods = (_POWERS - 1) * slopes - 0.5 * np.log(variances)
    return float(_POWERS[np.nanargmax(np.where(np.isfinite(likelihoods), likelihoods, -np.inf))])


LABELS = "labels"
_BLOCK = 8192


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
    power: Annotated[float, Field(ge=0, le=2)]
    shift: float
    spread: Annotated[float, Field(gt=0)]
    low: float | None
    high: float | None
    residuals: list[float]


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
    low: float = math.inf
    high: float = -math.inf
    # Labels and weights of fewer rows than a block, [2, N]
    rest: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))

    def add(self, y_N: np.ndarray, weight_N: np.ndarray) -> None:
        """Adds more labels and their weights."""
        if not len(y_N):
            return
        if self.first is None:
            self.first = float(y_N[0])
        self.low, self.high = min(self.low, float(y_N.min())), max(self.high, float(y_N.max()))
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
        # Of tasks whose curve is found from the labels
        self._samples = {t: RowSample(1) for t, task in enumerate(self.tasks) if task.curve}
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
            if t in self._samples:
                self._samples[t].add(y_N[:, None].astype(np.float64))

    def finish(self) -> dict[str, LabelSpec]:
        """Returns the statistics by task; a task without a row that counts is left out."""
        found = {}
        for t, (task, sums) in enumerate(zip(self.tasks, self._sums, strict=True)):
            spec = sums.finish()
            if spec is None:
                continue
            if "target" in task.means:
                low, high = limits(sums.low, sums.high)
                spec = replace(spec, low=low, high=high)
            curve = self._curve(t, task) if spec.deviation > 0 else None
            found[task.name] = _scaled(task, spec) if curve is None else _bent(spec, curve)
        return found

    def _curve(self, t: int, task: TaskConfig) -> TargetScale | None:
        if task.curve is None:
            return None
        return fit_scale(self._samples[t].rows_NC[:, 0], task.curve)


def _bent(label: LabelSpec, curve: TargetScale) -> LabelSpec:
    """The statistics of a label that is curved: its targets have mean 0 and deviation 1."""
    scale = replace(curve, low=label.low, high=label.high)
    return LabelSpec(mean=0.0, deviation=1.0, **vars(scale))


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


def continued(label: LabelSpec, today: LabelSpec | None) -> LabelSpec:
    """Returns what a run goes on with of an earlier one's label: its targets, and both limits.

    The mean and the deviation of these targets are those of today's rows.

    Args:
        label: Of the earlier run.
        today: Of the rows of this one; None: they have none.
    """
    scales = [scale_of(label), *([] if today is None else [scale_of(today)])]
    low, high = label.low, label.high  # none, where predictions may be any number
    if low is not None and high is not None:
        low, high = min(scale.low for scale in scales), max(scale.high for scale in scales)
    if today is not None:  # one deviation below and above the mean: exact without a curve
        own = replace(scales[1], low=-math.inf, high=math.inf)
        about = own.of(np.array([today.mean - today.deviation, today.mean + today.deviation]))
        targets = scales[0].targets_of(about)
        label = replace(label, mean=float(targets.mean()), deviation=float(targets.std()))
    # Residuals are those of its own validation rows
    return replace(label, low=low, high=high, residuals=())


def scale_of(label: LabelSpec) -> TargetScale:
    """Returns how a task's labels become targets, and its targets predictions."""
    return TargetScale(
        label.center,
        label.scale,
        power=label.power,
        shift=label.shift,
        spread=label.spread,
        low=-math.inf if label.low is None else label.low,
        high=math.inf if label.high is None else label.high,
        residuals=label.residuals,
    )


def row_links(
    config: RunConfig, rules: Mapping[str, Mapping[str, Any]], table: pa.Table, origin: str
) -> dict[int, RowLink]:
    """Makes the links of a table's rows, by the places of tasks whose targets are not labels."""
    found: dict[int, RowLink] = {}
    if "d2q" in [task.kind for task in config.tasks]:
        found |= watch_links(config, rules, table, origin)
    labels = rules.get(LABELS, {})
    for t, task in enumerate(config.tasks):
        spec = labels.get(task.name)
        if spec is not None and not (scale := scale_of(spec)).is_identity:
            found[t] = scale
    return found


@dataclass(frozen=True)
class Means:
    """Curved tasks' scales, by place, before and after residuals of held-out rows were found."""

    before: Mapping[int, TargetScale]
    after: Mapping[int, TargetScale]
    columns: int  # of predictions; as many more with the logged display may stand behind

    @classmethod
    def fit(
        cls,
        config: RunConfig,
        specs: Mapping[str, LabelSpec],
        predicted_NP: np.ndarray,
        labels: EncodedLabels,
    ) -> "Means":
        """Finds how predictions of curved targets become means.

        Args:
            config: Of the run.
            specs: What is known of each task's label, without residuals.
            predicted_NP: Of rows that were not trained on.
            labels: Of the same rows.
        """
        before = {
            t: scale_of(specs[task.name])
            for t, task in enumerate(config.tasks)
            if task.name in specs and specs[task.name].power != 1.0
        }
        after = {}
        for t, scale in before.items():
            weights_N = np.where(labels.observed_NT[:, t], labels.weights_NT[:, t], 0)
            after[t] = scale.unbiased(
                predicted_NP[:, t], labels.labels_NT[:, t], weights_N.astype(np.float64)
            )
        return cls(before, after, len(prediction_columns(config.tasks)))

    def of(self, predicted_NP: np.ndarray) -> np.ndarray:
        """Returns predictions as means, of those without residuals."""
        if not self.after:
            return predicted_NP
        found_NP = predicted_NP.copy()
        for t, scale in self.after.items():
            for column in range(t, predicted_NP.shape[1], self.columns):
                targets_N = self.before[t].targets_of(predicted_NP[:, column])
                found_NP[:, column] = scale.of(targets_N)
        return found_NP

    def kept(self, specs: Mapping[str, LabelSpec], config: RunConfig) -> dict[str, LabelSpec]:
        """Returns what is known of the labels, residuals beside it."""
        found = dict(specs)
        for t, scale in self.after.items():
            name = config.tasks[t].name
            found[name] = replace(found[name], residuals=scale.residuals)
        return found


def with_targets(labels: EncodedLabels, links: Mapping[int, RowLink]) -> EncodedLabels:
    """Returns the labels with what tasks are trained on, where that is something else.

    Args:
        labels: Of N rows.
        links: Of the same rows, by the tasks' places; none: labels are trained on unchanged.
    """
    links = {t: link for t, link in links.items() if not link.keeps_labels}
    if not links:
        return labels
    targets_NT = labels.labels_NT.copy()
    for t, link in links.items():
        targets_NT[:, t] = np.where(
            labels.observed_NT[:, t], link.targets_of(labels.labels_NT[:, t]), 0
        )
    return replace(labels, targets_NT=targets_NT)
