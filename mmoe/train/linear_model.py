"""A linear model in which each group of weights has a variance of its own, found from the rows."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

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
