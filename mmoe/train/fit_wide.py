"""Fits the wide part of a model: a penalised linear model a task, before the first epoch."""

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse

from mmoe.config import RunConfig
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.metrics.auc import auc
from mmoe.metrics.task_kinds import kind_of
from mmoe.models.wide import WidePart
from mmoe.parallel import from_first
from mmoe.run.console import Reporter
from mmoe.train.design_matrix import Columns, id_columns, numbers_a_row
from mmoe.train.prepare import PreparedData

# Inverse penalties, the strongest first. C is the variance of the prior of the weights, so few rows
# tell the best as well as many do
_CHOICES = (0.03, 0.1, 0.3, 1.0, 3.0)
# Up to here a split of a tenth chooses by luck, and five fits more take no time
_FEW_ROWS, _FOLDS = 20_000, 5
_PASSES = 100
# Beyond, a sample: the fit takes seconds, and its weights are no longer what limits the model
_MOST_ROWS = 400_000
_MOST_TO_CHOOSE = 100_000
# Entries of the matrix, of 12 bytes each
_MOST_NUMBERS = 40_000_000
_HELD_OUT = 0.2


@dataclass(frozen=True)
class _Rows:
    """Rows on which a task is observed: the matrix, labels, and weights of mean 1."""

    x: sparse.csr_array
    y_N: np.ndarray
    weights_N: np.ndarray

    def where(self, mask_N: np.ndarray) -> "_Rows":
        """Keeps only some."""
        return _Rows(self.x[np.flatnonzero(mask_N)], self.y_N[mask_N], self.weights_N[mask_N])


@dataclass(frozen=True)
class _Linear:
    """A linear model: a weight for each column of the matrix."""

    weights: np.ndarray
    bias: float

    def logits(self, rows: _Rows) -> np.ndarray:
        return rows.x @ self.weights + self.bias


@dataclass(frozen=True)
class _Fitted:
    """All weights, as the buffers of `WidePart` take them, and what is said of each task."""

    ids_RT: np.ndarray
    dense_TF: np.ndarray
    bias_T: np.ndarray
    said: list[str]


def fit_wide(
    wide: WidePart | None, config: RunConfig, prepared: PreparedData, reporter: Reporter
) -> None:
    """Fits logistic regression (ridge for a regression task) and puts its weights into `wide`.

    Training rows are those in memory, of a stream the sample that its encoder was fitted beside;
    at most 400,000. The penalty is the one of a few whose loss is the least on the validation
    split, where that is in memory, or on a fifth of the rows that is held out; up to 20,000 rows,
    on fifths of them in turn. Rank 0 fits for all.

    Args:
        wide: Of a new model; changed in place. None: nothing is done.
        config: Tasks and seed.
        prepared: Training and validation rows.
        reporter: Told of the penalties in one line.

    Source: Fan et al., "LIBLINEAR" (JMLR 2008), for the loss: `½ |w|² + C Σ_n loss_n`.
    """
    if wide is None:
        return
    start = time.perf_counter()
    found = from_first(lambda: _fit(wide, config, prepared), takes_long=True)
    with torch.no_grad():
        wide.ids_RT.copy_(torch.from_numpy(found.ids_RT))
        wide.dense_TF.copy_(torch.from_numpy(found.dense_TF))
        wide.bias_T.copy_(torch.from_numpy(found.bias_T))
    seconds = time.perf_counter() - start
    reporter.say(f"wide part: {'; '.join(found.said)}; {seconds:.1f} s")


def _fit(wide: WidePart, config: RunConfig, prepared: PreparedData) -> _Fitted:
    rows, tasks = len(wide.ids_RT), len(config.tasks)
    found = _Fitted(
        np.zeros((rows, tasks), np.float32),
        np.zeros((tasks, wide.dense_TF.shape[1]), np.float32),
        np.zeros(tasks, np.float32),
        [],
    )
    data = prepared.train.held or prepared.sample
    if data is None or data.labels is None or not len(data):
        found.said.append("no rows in memory to fit it on, so it is 0")
        return found
    generator = np.random.default_rng(config.seed)
    rows_N = _drawn(data, _MOST_ROWS, generator)
    ids, dense_NF = id_columns(wide, data.features, rows_N), _dense(data, rows_N)
    columns = Columns.of(ids, dense_NF)
    x = columns.matrix(ids, dense_NF)
    validation = prepared.validation.held
    judged_N = _drawn(validation, _MOST_TO_CHOOSE, generator)
    x_judged = None
    if validation is not None:
        ids = id_columns(wide, validation.features, judged_N)
        x_judged = columns.matrix(ids, _dense(validation, judged_N))
    for t, task in enumerate(config.tasks):
        if not task.weight:
            found.said.append(f"{task.name} is not trained")
            continue
        mine = _rows_of_task(data, rows_N, x, t)
        judge = None if x_judged is None else _rows_of_task(validation, judged_N, x_judged, t)
        model, said = _fit_task(mine, judge, kind_of(task.kind).is_event, generator)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = columns.unscaled(model.weights, model.bias, rows)
            found.ids_RT[:, t], found.dense_TF[t], found.bias_T[t] = weights
        found.said.append(f"{task.name} {said}")
    for array in (found.ids_RT, found.dense_TF, found.bias_T):  # labels near the end of the range
        np.nan_to_num(array, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    return found


def _drawn(data: EncodedData | None, most: int, generator: np.random.Generator) -> np.ndarray:
    """Numbers of the rows that are used, rising: all, or a sample."""
    if data is None:
        return np.zeros(0, np.int64)
    most = min(most, int(_MOST_NUMBERS / max(numbers_a_row(data.features), 1)))
    if len(data) <= most:
        return np.arange(len(data))
    return np.sort(generator.choice(len(data), most, replace=False))


def _dense(data: EncodedData, rows_N: np.ndarray) -> np.ndarray:
    """Dense columns; what is not finite, which training refuses in words of its own, as 0."""
    return np.nan_to_num(data.features.dense_NF[rows_N], nan=0.0, posinf=0.0, neginf=0.0)


def _rows_of_task(
    data: EncodedData | None, rows_N: np.ndarray, x: sparse.csr_array, t: int
) -> _Rows:
    assert data is not None and data.labels is not None, "these splits carry labels"
    weights_N = data.labels.weights_NT[rows_N, t].astype(np.float64)
    there_N = data.labels.observed_NT[rows_N, t] & (weights_N > 0)
    found = _Rows(x, data.labels.labels_NT[rows_N, t].astype(np.float64), weights_N)
    found = found if there_N.all() else found.where(there_N)
    mean = found.weights_N.mean() if len(found.y_N) else 1.0
    return _Rows(found.x, found.y_N, found.weights_N / mean)


def _fit_task(
    rows: _Rows, judge: _Rows | None, is_event: bool, draw: np.random.Generator
) -> tuple[_Linear, str]:
    """The model of the best penalty, and what to say of it."""
    if not _differ(rows):
        return _constant(rows, is_event), "has one outcome only, so it is that"
    fitted, where = rows, "validation"
    if judge is None or not _differ(judge):
        aside_N = draw.random(len(rows.y_N)) < _HELD_OUT
        fitted, judge, where = rows.where(~aside_N), rows.where(aside_N), "held-out"
    if len(fitted.y_N) > 2 * _MOST_TO_CHOOSE:
        fitted = fitted.where(draw.random(len(fitted.y_N)) < _MOST_TO_CHOOSE / len(fitted.y_N))
    if not _differ(fitted) or not _differ(judge):  # too few rows to choose by
        return _model(rows, _CHOICES[0], is_event), f"C {_CHOICES[0]:g}"
    if len(rows.y_N) <= _FEW_ROWS:
        choice = _best_of_folds(rows, is_event, draw)
        model = _model(fitted, choice, is_event)
    else:
        choice, model = _best(fitted, judge, is_event)
    said = f"C {choice:g}, {where} {_score(judge, model.logits(judge), is_event)}"
    return (model if fitted is rows else _model(rows, choice, is_event)), said


def _best(rows: _Rows, judge: _Rows, is_event: bool) -> tuple[float, _Linear]:
    """The penalty from which a weaker one no longer helps, and its model."""
    best, model, loss = 0.0, _constant(rows, is_event), np.inf
    for choice in _CHOICES:
        tried = _model(rows, choice, is_event)
        tried_loss = _loss(judge, tried.logits(judge), is_event)
        if not tried_loss < loss:
            break
        best, model, loss = choice, tried, tried_loss
    return best or _CHOICES[0], model


def _best_of_folds(rows: _Rows, is_event: bool, draw: np.random.Generator) -> float:
    """The penalty from which a weaker one no longer helps, on rows that are held out in turn."""
    fold_N = draw.integers(0, _FOLDS, len(rows.y_N))
    folds = [(rows.where(fold_N != k), rows.where(fold_N == k)) for k in range(_FOLDS)]
    folds = [(fitted, judge) for fitted, judge in folds if _differ(fitted) and len(judge.y_N)]
    best, loss = _CHOICES[0], np.inf
    for choice in _CHOICES:
        models = [(_model(fitted, choice, is_event), judge) for fitted, judge in folds]
        tried = [_loss(judge, model.logits(judge), is_event) for model, judge in models]
        if not sum(tried) < loss:
            break
        best, loss = choice, sum(tried)
    return best


def _model(rows: _Rows, choice: float, is_event: bool) -> _Linear:
    """Minimises `½ |w|² + C Σ_n weight_n loss_n`, where ridge has half of the squared error."""
    from sklearn.linear_model import LogisticRegression, Ridge  # slow to import: only where used

    model: Any = Ridge(alpha=1 / choice, solver="lsqr")
    if is_event:
        model = LogisticRegression(C=choice, max_iter=_PASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more passes gain nothing; the loss is judged
        model.fit(rows.x, rows.y_N, sample_weight=rows.weights_N)
    return _Linear(np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]))


def _differ(rows: _Rows) -> bool:
    return len(rows.y_N) > 0 and bool((rows.y_N != rows.y_N[0]).any())


def _constant(rows: _Rows, is_event: bool) -> _Linear:
    """No weights, and the mean as bias; of an event its log odds, with half a row of either."""
    sum_of_weights = rows.weights_N.sum()
    total = float(rows.weights_N @ rows.y_N)
    bias = total / max(sum_of_weights, 1.0)
    if is_event:
        bias = float(np.log((total + 0.5) / (sum_of_weights - total + 0.5)))
    return _Linear(np.zeros(rows.x.shape[1]), bias)  # type: ignore[index]  # untyped in SciPy


def _loss(rows: _Rows, logits_N: np.ndarray, is_event: bool) -> float:
    """Mean log loss, or squared error."""
    if is_event:
        losses_N = np.logaddexp(0, logits_N) - rows.y_N * logits_N
    else:
        losses_N = (logits_N - rows.y_N) ** 2
    return float(np.average(losses_N, weights=rows.weights_N))


def _score(rows: _Rows, logits_N: np.ndarray, is_event: bool) -> str:
    if is_event:
        return f"AUC {auc(rows.y_N, logits_N):.4f}"
    return f"RMSE {_loss(rows, logits_N, is_event) ** 0.5:.4g}"
