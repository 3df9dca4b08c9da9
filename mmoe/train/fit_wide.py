"""Fits the wide part of a model, a linear model a task, before the first epoch, or keeps it.

Each group of weights has a variance of its own, which is found from the rows (`fit_linear`)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from mmoe.config import FeatureSpec, RunConfig, TaskConfig
from mmoe.datasets import EncodedData, EncodedFeatures, EncodedLabels, FeatureEncoder
from mmoe.datasets.labels.targets import TargetScale
from mmoe.datasets.rows.encoded import RaggedRows
from mmoe.datasets.values.arrow import offsets_of
from mmoe.metrics import auc, kind_of
from mmoe.models.wide import WidePart
from mmoe.parallel import from_first
from mmoe.run import Reporter
from mmoe.train.prepare import PreparedData
from mmoe.train.warm_start import EarlierRun

# Rounds in which the variances are looked for; they settle in three
_ROUNDS = 3
_FIRST, _LEAST, _MOST = 0.1, 1e-6, 10.0
_PASSES = 200
# By what part a pass lowers the loss: of the weights that variances are told from, and at last
_ROUGH, _FINE = 1e-5, 1e-6
# Beyond, the variances are those of a sample; the weights are always of all rows
_MOST_TO_LOOK = 100_000


@dataclass(frozen=True)
class Rows:
    """Rows of a matrix with a label and a weight each; the weights' mean is 1."""

    x: sparse.csr_array
    y_N: np.ndarray
    weights_N: np.ndarray

    def where(self, rows_R: np.ndarray) -> "Rows":
        """Keeps only those of some numbers."""
        return Rows(self.x[rows_R], self.y_N[rows_R], self.weights_N[rows_R])

    @property
    def differ(self) -> bool:
        """Whether there are labels, and not all are the same."""
        return len(self.y_N) > 0 and bool((self.y_N != self.y_N[0]).any())


@dataclass(frozen=True)
class Linear:
    """A linear model: a weight for each column of the matrix."""

    weights_C: np.ndarray
    bias: float

    @property
    def tells(self) -> bool:
        """Whether any column counts."""
        return bool(self.weights_C.any())

    def logits(self, x: sparse.csr_array) -> np.ndarray:
        """Returns `x w + b`, [N]."""
        return x @ self.weights_C + self.bias


@dataclass(frozen=True)
class _Found:
    """The state of the search: weights, each group's variance, and that of the noise."""

    model: Linear
    variance_G: np.ndarray
    noise: float


def constant(rows: Rows, is_event: bool) -> Linear:
    """Returns no weights, and the mean as bias; of an event its log odds, with half a row more."""
    sum_of_weights = rows.weights_N.sum()
    total = float(rows.weights_N @ rows.y_N)
    bias = total / max(sum_of_weights, 1.0)
    if is_event:
        bias = float(np.log((total + 0.5) / (sum_of_weights - total + 0.5)))
    return Linear(np.zeros(rows.x.shape[-1]), bias)  # type: ignore[index]  # untyped in SciPy


def fit_linear(
    rows: Rows, group_C: np.ndarray, *, is_event: bool, draw: np.random.Generator
) -> Linear:
    """Fits weights `w_c ~ N(0, v_g)`, each group g with the variance `v_g` that the rows support.

    `min Σ_n weight_n loss_n + ½ Σ_c w_c² / v_g(c)`, and in turn, with h the diagonal of the
    losses' second derivative and `γ_g = Σ_c (1 − 1 / (1 + h_c v_g))`, the number of weights that
    the rows determine, `v_g = Σ_c w_c² / γ_g`. Columns of noise end near zero, and many ids of
    similar rates close to one another; nothing is held out to choose a penalty by.

    Args:
        rows: Of the task.
        group_C: Number of the group that each column belongs to.
        is_event: Logistic regression, or linear regression with normal noise.
        draw: Draws the rows in which variances are looked for, where there are many.

    Source: MacKay, "Bayesian interpolation" (Neural Computation 1992) and "The evidence framework
        applied to classification networks" (1992), with a diagonal Hessian.
    """
    if not rows.differ:
        return constant(rows, is_event)
    centre, scale = 0.0, 1.0
    if not is_event:
        centre = float(np.average(rows.y_N, weights=rows.weights_N))
        scale = float(np.sqrt(np.average((rows.y_N - centre) ** 2, weights=rows.weights_N)))
        if not 0 < scale < np.inf:  # beyond float64's range, or of rows that count for nothing
            return constant(rows, is_event)
        rows = Rows(rows.x, (rows.y_N - centre) / scale, rows.weights_N)
    looked_at = _sample(rows, draw)
    groups = int(group_C.max(initial=-1)) + 1
    found = _Found(constant(rows, is_event), np.full(groups, _FIRST), 1.0)
    before = found
    for _ in range(_ROUNDS):
        before = found
        model = _solve(looked_at, found, group_C, is_event, _ROUGH)
        found = _evidence(looked_at, model, found, group_C, is_event)
    model = _solve(rows, found, group_C, is_event, _FINE)
    # Under the variances before the last round: with those after it, which are nearer to what the
    # labels happen to be, noise passes for a model in 8 of 30 logs, not in one
    determined = float(_determined(rows, model, before, group_C, is_event).sum())
    if not _tells(rows, model, found, determined, is_event):
        model = constant(rows, is_event)
    return Linear(model.weights_C * scale, model.bias * scale + centre)


def _sample(rows: Rows, draw: np.random.Generator) -> Rows:
    if len(rows.y_N) <= 2 * _MOST_TO_LOOK:
        return rows
    part = rows.where(np.sort(draw.choice(len(rows.y_N), _MOST_TO_LOOK, replace=False)))
    return part if part.differ else rows


def _solve(
    rows: Rows, found: _Found, group_C: np.ndarray, is_event: bool, tolerance: float
) -> Linear:
    """The weights that are likeliest under the variances, from those found before.

    Each weight is sought in units of what the rows leave open of it, `(h + 1 / v)^−½`: an id of
    100,000 rows and one of ten then need as many passes: of five logs' first tasks half to an
    eighth of those in units of `v^½`.
    """
    precision_C = 1 / found.variance_G[group_C]
    curvature_N = _curvature(rows, found.model.logits(rows.x), found.noise, is_event)
    unit_C = 1 / np.sqrt(_with_data(rows.x, rows.x.data**2).T @ curvature_N + precision_C)
    unit_of_bias = 1 / np.sqrt(max(float(curvature_N.sum()), _LEAST))
    transposed, noise = rows.x.T, 1.0 if is_event else found.noise

    def loss(sought: np.ndarray) -> tuple[float, np.ndarray]:
        model = Linear(sought[:-1] * unit_C, float(sought[-1] * unit_of_bias))
        logits_N = model.logits(rows.x)
        losses_N, slopes_N = _losses(logits_N, rows.y_N, is_event)
        slopes_N = rows.weights_N * slopes_N / noise
        pull_C = precision_C * model.weights_C
        total = float(rows.weights_N @ losses_N) / noise + 0.5 * float(pull_C @ model.weights_C)
        gradient_C = (transposed @ slopes_N + pull_C) * unit_C
        return total, np.append(gradient_C, slopes_N.sum() * unit_of_bias)

    first = np.append(found.model.weights_C / unit_C, found.model.bias / unit_of_bias)
    options = {"maxiter": _PASSES, "ftol": tolerance, "gtol": 0.0}
    sought = minimize(loss, first, jac=True, method="L-BFGS-B", options=options).x
    return Linear(sought[:-1] * unit_C, float(sought[-1] * unit_of_bias))


def _tells(rows: Rows, model: Linear, found: _Found, determined: float, is_event: bool) -> bool:
    """Whether the loss on new rows is likely to be less than that of no weights.

    Akaike's criterion: on the rows that weights are fitted to, it is less by one for each that they
    determine, whether or not it tells anything.
    """
    zero = constant(rows, is_event)
    own_N, zeros_N = (_losses(each.logits(rows.x), rows.y_N, is_event)[0] for each in (model, zero))
    noise = 1.0 if is_event else found.noise
    return float(rows.weights_N @ (zeros_N - own_N)) / noise > determined


def _determined(
    rows: Rows, model: Linear, found: _Found, group_C: np.ndarray, is_event: bool
) -> np.ndarray:
    """The share of each weight that the rows determine under the variances found, [C]."""
    curvature_N = _curvature(rows, model.logits(rows.x), found.noise, is_event)
    hessian_C = _with_data(rows.x, rows.x.data**2).T @ curvature_N
    return 1 - 1 / (1 + hessian_C * found.variance_G[group_C])


def _losses(logits_N: np.ndarray, y_N: np.ndarray, is_event: bool) -> tuple[np.ndarray, np.ndarray]:
    """Log losses, or halves of squared errors, and their slopes."""
    if is_event:
        return np.logaddexp(0, logits_N) - y_N * logits_N, expit(logits_N) - y_N
    errors_N = logits_N - y_N
    return 0.5 * errors_N**2, errors_N


def _curvature(rows: Rows, logits_N: np.ndarray, noise: float, is_event: bool) -> np.ndarray:
    """Second derivatives of the rows' losses."""
    if not is_event:
        return rows.weights_N / noise
    rates_N = expit(logits_N)
    return rows.weights_N * rates_N * (1 - rates_N)


def _evidence(
    rows: Rows, model: Linear, found: _Found, group_C: np.ndarray, is_event: bool
) -> _Found:
    """The variances under which these rows are likelier."""
    groups, noise = len(found.variance_G), found.noise
    determined_C = _determined(rows, model, found, group_C, is_event)
    determined_G = np.bincount(group_C, determined_C, minlength=groups)
    squares_G = np.bincount(group_C, model.weights_C**2, minlength=groups)
    if not is_event:
        errors = float(rows.weights_N @ (rows.y_N - model.logits(rows.x)) ** 2)
        noise = max(errors / max(len(rows.y_N) - determined_G.sum(), 1.0), _LEAST)
    variance_G = np.clip(squares_G / np.maximum(determined_G, _LEAST), _LEAST, _MOST)
    return _Found(model, variance_G, noise)


def _with_data(x: sparse.csr_array, data: np.ndarray) -> sparse.csr_array:
    """The same places with other numbers in them; indices are shared."""
    return sparse.csr_array((data, x.indices, x.indptr), shape=x.shape)


# Beyond, a sample: the fit takes seconds, and its weights are no longer what limits the model
_MOST_ROWS = 400_000
_MOST_JUDGED = 100_000
# Entries of the matrix, of 12 bytes each
_MOST_NUMBERS = 40_000_000
# Rows of the rarer outcome, and their share, below which a network would learn noise alone where
# even sums of the columns tell nothing
_RARE, _RARE_SHARE = 500, 0.2


def fit_wide(
    wide: WidePart | None, config: RunConfig, prepared: PreparedData, reporter: Reporter
) -> None:
    """Fits a linear model for each task, and puts its weights into `wide`.

    Logistic regression, or linear regression for a regression task. Each table's weights have a
    variance of their own, which the rows tell, so features of noise end near zero. The task with
    most positives comes first (of regressions: most rows), and the logits of those before are
    columns for each later one: a rare task learns its weights from what it has in common with the
    frequent ones, and only the rest from its own few rows. These logits come from models of the
    other half of the rows: where one label is made of another, those of a model's own rows would
    pass what it has by heart for knowledge. Sums of linear models are linear, so every task ends
    with one weight a row and column.

    Training rows are those in memory, of a stream the sample that its encoder was fitted beside;
    at most 400,000. Rank 0 fits for all.

    Args:
        wide: Of a new model; changed in place. None: nothing is done.
        config: Tasks and seed.
        prepared: Training rows, and those of validation, where they are in memory, whose AUC
            (or RMSE) is said.
        reporter: Told of it in one line.
    """
    if wide is None:
        return
    from threadpoolctl import threadpool_limits  # which sets a variable of the environment

    start = time.perf_counter()
    # Vectors of some thousand weights: with two threads, four logs took two to four times as long
    with threadpool_limits(1, user_api="blas"):
        found, said = from_first(lambda: _fit(wide, config, prepared), takes_long=True)
    with torch.no_grad():
        for name, weights in found.items():
            wide.get_buffer(name).copy_(torch.from_numpy(weights))
    seconds = time.perf_counter() - start
    reporter.say(f"wide part: {'; '.join(said)}; {seconds:.1f} s")


def _fit(
    wide: WidePart, config: RunConfig, prepared: PreparedData
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Fits all weights into the buffers of `wide`; returns a line about each task."""
    rows, tasks = len(wide.ids_RT), len(config.tasks)
    found = {
        "ids_RT": np.zeros((rows, tasks), np.float32),
        "dense_TF": np.zeros((tasks, wide.dense_TF.shape[1]), np.float32),
        "bias_T": np.zeros(tasks, np.float32),
        "mixed_T": np.ones(tasks, bool),
    }
    data = prepared.train.held or prepared.sample
    if data is None or data.labels is None or not len(data):
        return found, ["no rows in memory to fit it on, so it is 0"]
    labels = data.labels.mature()
    data = replace(data, labels=labels)
    generator = np.random.default_rng(config.seed)
    rows_N = _drawn(data, _MOST_ROWS, generator)
    ids, dense_NF = id_columns(wide, data.features, rows_N), _dense(data, rows_N, wide)
    columns = Columns.of(ids, dense_NF)
    shared = _Shared(columns.matrix(ids, dense_NF), columns.groups(wide), tasks)
    held = prepared.validation.held
    judged_N = _drawn(held, _MOST_JUDGED, generator)
    x_judged = None
    if held is not None:
        ids = id_columns(wide, held.features, judged_N)
        x_judged = columns.matrix(ids, _dense(held, judged_N, wide))
    said = [
        f"{task.name} has none, as it is of kind {task.kind}"
        if task.weight
        else f"{task.name} is not trained"
        for task in config.tasks
    ]
    for t, told, of_rows in _most_told_first(config.tasks, labels, rows_N):
        is_event = kind_of(config.tasks[t].kind).is_event
        mine, there_N = _rows_of_task(data, rows_N, shared.x, t)
        judge = None if x_judged is None else _rows_of_task(held, judged_N, x_judged, t)[0]
        model = shared.fitted(mine, there_N, is_event, generator)
        link = data.features.links.get(t)
        assert link is None or isinstance(link, TargetScale), "linear models are of numbers"
        with np.errstate(over="ignore", invalid="ignore"):
            weights = columns.unscaled(model.weights_C, model.bias, rows)
            found["ids_RT"][:, t], found["dense_TF"][t], found["bias_T"][t] = weights
        is_rare = 0 < told < min(_RARE, _RARE_SHARE * of_rows)
        found["mixed_T"][t] = model.tells or not is_rare
        said[t] = f"{config.tasks[t].name} {_said(model, mine, judge, is_event, link)}"
        if not found["mixed_T"][t]:
            said[t] += f" (the network leaves it there: {told:,} positives are too few)"
    for name in ("ids_RT", "dense_TF", "bias_T"):  # labels near the end of the range
        np.nan_to_num(found[name], copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    return found, said


class _Shared:
    """The matrix of all rows, with a column for each task's logits, which later tasks weigh too.

    Attributes:
        x: [N, C + T]; the last T columns are explicit zeros until their task is fitted.
    """

    def __init__(self, x: sparse.csr_array, groups_C: np.ndarray, tasks: int) -> None:
        rows = len(x.indptr) - 1
        # Of x's width: SciPy gives both blocks the wider of two
        zeros = np.zeros(rows * tasks), np.tile(np.arange(tasks, dtype=x.indices.dtype), rows)
        starts = np.arange(rows + 1, dtype=x.indptr.dtype) * tasks
        spare = sparse.csr_array((*zeros, starts), shape=(rows, tasks))
        self.x = sparse.csr_array(sparse.hstack([x, spare], format="csr"))
        groups = int(groups_C.max(initial=-1)) + 1
        self._groups_C = np.concatenate([groups_C, groups + np.arange(tasks)])
        self._most, self._columns = tasks, len(groups_C)
        self._earlier: list[tuple[Linear, float]] = []  # and the deviation of its logits

    def fitted(
        self, rows: Rows, there_N: np.ndarray, is_event: bool, draw: np.random.Generator
    ) -> Linear:
        """Returns a task's model of the first C columns, and gives later ones its logits.

        `rows` are those of `x` that are `there_N`.
        """
        model = fit_linear(rows, self._groups_C, is_event=is_event, draw=draw)
        logits_N = None
        if model.tells and len(self._earlier) + 1 < self._most:
            logits_N = model.logits(self.x)
            half_N = draw.integers(2, size=len(logits_N))
            for half in range(2):
                own_N = there_N & (half_N == half)
                other = rows.where(np.flatnonzero(half_N[there_N] != half))
                halved = fit_linear(other, self._groups_C, is_event=is_event, draw=draw)
                logits_N[own_N] = halved.logits(self.x[np.flatnonzero(own_N)])
        weights_C, of_earlier_T = np.split(model.weights_C, [self._columns])
        bias = model.bias
        for weight, (earlier, deviation) in zip(of_earlier_T, self._earlier, strict=False):
            weights_C = weights_C + weight / deviation * earlier.weights_C
            bias += weight / deviation * earlier.bias
        model = Linear(weights_C, bias)
        if logits_N is not None:
            self._give(model, logits_N)
        return model

    def _give(self, model: Linear, logits_N: np.ndarray) -> None:
        mean, deviation = float(logits_N.mean()), float(logits_N.std())
        if not 0 < deviation < np.inf:
            return
        centred = Linear(model.weights_C, model.bias - mean)
        indices_N = self.x.indptr[1:] - self._most + len(self._earlier)
        self.x.data[indices_N] = (logits_N - mean) / deviation
        self._earlier.append((centred, deviation))


def _most_told_first(
    tasks: Sequence[TaskConfig], labels: EncodedLabels, rows_N: np.ndarray
) -> list[tuple[int, int, int]]:
    """Tasks with a linear model: the rows that tell of each, of the rarer outcome, and all rows.

    The one with most comes first.
    """
    told = []
    for t, task in enumerate(tasks):
        if task.weight and kind_of(task.kind).linear_logit:
            there_N = labels.observed_NT[rows_N, t].astype(bool)
            events = np.count_nonzero(labels.labels_NT[rows_N, t][there_N])
            rows = np.count_nonzero(there_N)
            rarer = min(events, rows - events) if kind_of(task.kind).is_event else rows
            told.append((t, rarer, rows))
    return sorted(told, key=lambda item: -item[1])


def _drawn(data: EncodedData | None, most: int, generator: np.random.Generator) -> np.ndarray:
    """Numbers of the rows that are used, rising: all, or a sample."""
    if data is None:
        return np.zeros(0, np.int64)
    most = min(most, int(_MOST_NUMBERS / max(_numbers_a_row(data.features), 1)))
    if len(data) <= most:
        return np.arange(len(data))
    return np.sort(generator.choice(len(data), most, replace=False))


def _dense(data: EncodedData, rows_N: np.ndarray, wide: WidePart) -> np.ndarray:
    """Dense columns; what is not finite, which training refuses in words of its own, as 0.

    So are those that `wide` does not read: a column of zeros gets no weight.
    """
    features, rows_N = all_columns(data.features, rows_N)
    found_NF = np.nan_to_num(features.dense_NF[rows_N], nan=0.0, posinf=0.0, neginf=0.0)
    found_NF[:, wide.unread_dense] = 0.0
    return found_NF


def _rows_of_task(
    data: EncodedData | None, rows_N: np.ndarray, x: sparse.csr_array, t: int
) -> tuple[Rows, np.ndarray]:
    """Rows where the task's label counts, and the mask of them, bool [N]."""
    assert data is not None and data.labels is not None, "these splits carry labels"
    weights_N = data.labels.weights_NT[rows_N, t].astype(np.float64)
    there_N = data.labels.observed_NT[rows_N, t] & (weights_N > 0)
    labels = data.labels
    targets_NT = labels.labels_NT if labels.targets_NT is None else labels.targets_NT
    found = Rows(x, targets_NT[rows_N, t].astype(np.float64), weights_N)
    found = found if there_N.all() else found.where(np.flatnonzero(there_N))
    mean = found.weights_N.mean() if len(found.y_N) else 1.0
    return Rows(found.x, found.y_N, found.weights_N / mean), there_N


def _said(
    model: Linear, rows: Rows, judge: Rows | None, is_event: bool, link: TargetScale | None
) -> str:
    """The model's AUC, or the RMSE of what `link` makes of its targets, in words."""
    if not rows.differ:
        return "has one outcome only, so it is that"
    if not model.tells:
        return "is predicted by no column, so it begins as its mean"
    where = "validation"
    if judge is None or not judge.differ:
        judge, where = rows, "training"
    # The matrix of training rows has columns of tasks behind
    spare = judge.x.shape[1] - len(model.weights_C)  # type: ignore[index]  # untyped in SciPy
    logits_N = Linear(np.pad(model.weights_C, (0, spare)), model.bias).logits(judge.x)
    if is_event:
        return f"{where} AUC {auc(judge.y_N, logits_N):.4f}"
    seen_N, labels_N = ((x_N if link is None else link.of(x_N)) for x_N in (logits_N, judge.y_N))
    errors_N = seen_N.astype(np.float64) - labels_N
    error = np.average(errors_N**2, weights=judge.weights_N) ** 0.5
    return f"{where} RMSE {error:.4g}"


# A column whose deviation is a smaller part of its mean is a constant and what float32 rounds away
_ROUNDING = 1e-6


def id_columns(wide: WidePart, features: EncodedFeatures, rows_N: np.ndarray) -> sparse.csr_array:
    """Returns what multiplies each weight of `wide.ids_RT`, [N, R]: ids pooled as there.

    Args:
        wide: Knows the features and where the rows of their tables begin.
        features: Encoded rows.
        rows_N: Numbers of those that are wanted.
    """
    features, rows_N = all_columns(features, rows_N)
    singles = features.ids_NC.shape[1]
    first_C = np.array(wide.first_rows, np.int64)
    read_C = np.flatnonzero(wide.read_C[:singles])
    # Columns are counted in 32 bits where that is enough: products take half the memory
    index = np.int32 if len(wide.ids_RT) < 2**31 else np.int64
    ids_NC = (features.ids_NC[rows_N] + first_C[:singles]).astype(index)[:, read_C]
    shape = len(rows_N), len(wide.ids_RT)
    starts = np.arange(len(rows_N) + 1, dtype=np.int64) * len(read_C)
    found = sparse.csr_array((np.ones(ids_NC.size), ids_NC.ravel(), starts), shape=shape)
    for number, feature in enumerate(wide.features[singles:]):
        if not wide.read_C[singles + number]:
            continue
        values, offsets = features.lists[number]
        weights = features.list_weights[number] if features.list_weights else None
        place = RaggedRows(offsets, rows_N, len(rows_N))
        ids_V = (place.ids(values) + first_C[singles + number]).astype(index)
        block = (_pooling(feature, place, weights), ids_V, offsets_of(place.lengths_B))
        found = found + sparse.csr_array(block, shape=shape)
    return sparse.csr_array(found)


def _pooling(feature: FeatureSpec, place: RaggedRows, weights: np.ndarray | None) -> np.ndarray:
    """The factor of each id's weight."""
    if feature.weighted:
        return place.weights(weights).astype(np.float64)
    if feature.pooling != "sum":  # of events as well
        return np.repeat(1 / np.maximum(place.lengths_B, 1), place.lengths_B)
    return np.ones(place.total)


def _numbers_a_row(features: EncodedFeatures) -> float:
    """Returns how many numbers a row of both matrices has, on average."""
    of_lists = sum(len(values) for values, _ in features.lists) / max(len(features), 1)
    of_requests = 0 if features.requests is None else _numbers_a_row(features.requests.features)
    return features.ids_NC.shape[1] + features.dense_NF.shape[1] + of_lists + of_requests


def all_columns(
    features: EncodedFeatures, rows_N: np.ndarray
) -> tuple[EncodedFeatures, np.ndarray]:
    """Returns features with the columns of requests beside those of rows, and where the rows are.

    Args:
        features: Encoded rows.
        rows_N: Numbers of those that are wanted: of rows with requests no others are copied.
    """
    if features.requests is None:
        return features, rows_N
    return features.take(rows_N).flat(), np.arange(len(rows_N))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of ids that occur in some rows, and how dense ones are scaled.

    Attributes:
        used_U: Rows of the tables that occur, rising.
        index_R: For each row of the tables its index among them; −1: it does not occur.
        mean_F: Of the dense columns.
        deviation_F: Likewise; 1 of a constant.
    """

    used_U: np.ndarray
    index_R: np.ndarray
    mean_F: np.ndarray
    deviation_F: np.ndarray

    @classmethod
    def of(cls, ids: sparse.csr_array, dense_NF: np.ndarray) -> "Columns":
        """Looks at all rows."""
        occurs_R = np.zeros(ids.shape[1], bool)  # type: ignore[index]  # untyped in SciPy
        occurs_R[ids.indices] = True
        mean_F, deviation_F = dense_NF.mean(axis=0, dtype=np.float64), np.ones(dense_NF.shape[1])
        for f in range(dense_NF.shape[1]):  # one at a time: in float64 all take twice the memory
            deviation = float(dense_NF[:, f].astype(np.float64).std())
            if deviation > _ROUNDING * abs(mean_F[f]):
                deviation_F[f] = deviation
        return cls(
            used_U=np.flatnonzero(occurs_R),
            index_R=np.where(occurs_R, np.cumsum(occurs_R) - 1, -1).astype(np.int32),
            mean_F=mean_F,
            deviation_F=deviation_F,
        )

    def matrix(self, ids: sparse.csr_array, dense_NF: np.ndarray) -> sparse.csr_array:
        """Returns both side by side, [N, U + F]; ids that did not occur count as nothing."""
        shape = len(ids.indptr) - 1, len(self.used_U)
        indices = self.index_R[ids.indices]
        data = np.where(indices < 0, 0.0, ids.data)
        # Indices of one width, and of 32 bits where that is enough
        starts = ids.indptr.astype(np.int32 if ids.nnz < 2**31 else np.int64)
        entries = (data, np.maximum(indices, 0).astype(starts.dtype), starts)
        found = sparse.csr_array(entries, shape=shape)
        if not dense_NF.shape[1]:
            return found
        scaled_NF = (dense_NF - self.mean_F) / self.deviation_F
        return sparse.csr_array(sparse.hstack([found, sparse.csr_array(scaled_NF)], format="csr"))

    def groups(self, wide: WidePart) -> np.ndarray:
        """Returns a number for each column of `matrix`: ids' is their table's, dense ones' own."""
        starts = np.unique(wide.first_rows)
        of_ids_U = np.searchsorted(starts, self.used_U, side="right") - 1
        return np.concatenate([of_ids_U, len(starts) + np.arange(len(self.mean_F))])

    def unscaled(
        self, weights: np.ndarray, bias: float, rows: int
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Turns weights of `matrix` into those of all rows of the tables and of raw columns."""
        ids_R = np.zeros(rows)
        ids_R[self.used_U] = weights[: len(self.used_U)]
        dense_F = weights[len(self.used_U) :] / self.deviation_F
        return ids_R, dense_F, bias - float(dense_F @ self.mean_F)


@torch.no_grad()
def keep_linear_models(
    wide: WidePart | None,
    earlier: EarlierRun | None,
    config: RunConfig,
    encoder: FeatureEncoder,
    reporter: Reporter,
) -> None:
    """Gives the tasks of an earlier run the weights that they have there.

    New ids and features weigh nothing for them. Where nothing is frozen, or there is no wide part,
    nothing is done.

    Args:
        wide: Fitted to today's rows; changed in place.
        earlier: The run of the warm start.
        config: Of the new run.
        encoder: Of the new run.
        reporter: Told whose stay.
    """
    if wide is None or earlier is None or not config.training.freeze:
        return
    stored = earlier.model().part("wide")
    old = {name: tensor.to(wide.bias_T.device) for name, tensor in stored.whole().items()}
    before = [task.name for task in earlier.config.tasks]
    kept = [task.name for task in config.tasks if task.name in before]
    old_columns = {name: f for f, name in enumerate(earlier.encoder.dense_names)}
    first = _first_rows(earlier.encoder)
    for task in kept:
        t, b = [one.name for one in config.tasks].index(task), before.index(task)
        wide.ids_RT[:, t] = 0
        for table, start in _first_rows(encoder).items():
            if table in first:
                rows = earlier.rows()[table]
                there_R = old["ids_RT"][first[table] : first[table] + rows, b]
                wide.ids_RT[start : start + rows, t] = there_R
        for f, name in enumerate(encoder.dense_names):
            place = old_columns.get(name)
            wide.dense_TF[t, f] = 0 if place is None else old["dense_TF"][b, place]
        wide.bias_T[t] = old["bias_T"][b]
        wide.mixed_T[t] = old["mixed_T"][b]
    reporter.say(f"wide part of {', '.join(kept)}: that of {earlier.path}")


def _first_rows(encoder: FeatureEncoder) -> dict[str, int]:
    """The first row of each table, as `WidePart` has them."""
    found, rows = {}, 0
    for table in encoder.tables:
        found[table.name] = rows
        rows += table.num_rows
    return found
