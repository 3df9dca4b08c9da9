"""A linear model whose groups of weights find their own variances."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from mmoe.train import fit_wide
from mmoe.train.fit_wide import Rows, constant, fit_linear

IDS, DEVIATIONS = 60, (1.0, 0.4, 0.0)  # of each group's true weights; the last is noise


def _drawn(rows, seed=0, *, is_event=True, noise=1.0):
    """One-hot ids of three columns, their weights, and labels of their sum."""
    rng = np.random.default_rng(seed)
    truth_C = np.concatenate([np.random.default_rng(9).normal(0, d, IDS) for d in DEVIATIONS])
    ids_NK = rng.integers(0, IDS, (rows, 3)) + IDS * np.arange(3)
    x = sparse.csr_array(
        (np.ones(ids_NK.size), ids_NK.ravel(), np.arange(rows + 1) * 3), shape=(rows, 3 * IDS)
    )
    z_N = x @ truth_C - 0.5
    y_N = z_N + rng.normal(0, noise, rows)
    if is_event:
        y_N = (rng.random(rows) < 1 / (1 + np.exp(-z_N))).astype(float)
    return Rows(x, y_N, np.ones(rows)), truth_C


GROUPS = np.repeat(np.arange(3), IDS)
OF_GROUP = [slice(IDS * g, IDS * (g + 1)) for g in range(3)]


def _fit(rows, is_event=True, groups=GROUPS):
    return fit_linear(rows, groups, is_event=is_event, draw=np.random.default_rng(0))


def _variances(rows, model, is_event, noise=1.0):
    """Of each group from the gradient: where it is least, `Xᵀ(y − p) / noise = w / v`."""
    z_N = model.logits(rows.x)
    p_N = 1 / (1 + np.exp(-z_N)) if is_event else z_N
    gradient_C = rows.x.T @ (rows.weights_N * (rows.y_N - p_N)) / noise
    return [
        (model.weights_C[own] @ model.weights_C[own]) / (model.weights_C[own] @ gradient_C[own])
        for own in OF_GROUP
    ]


@pytest.mark.parametrize("is_event", [True, False])
def test_variances_are_those_of_the_truth(is_event):
    rows, truth_C = _drawn(8_000, is_event=is_event)
    model = _fit(rows, is_event)
    found = _variances(rows, model, is_event)
    for g in range(2):
        assert found[g] == pytest.approx(np.var(truth_C[OF_GROUP[g]]), rel=0.35)
    assert np.abs(model.weights_C[OF_GROUP[2]]).max() < 0.12
    assert np.corrcoef(model.weights_C[OF_GROUP[0]], truth_C[OF_GROUP[0]])[0, 1] > 0.95


def test_of_one_group_it_is_logistic_regression_with_its_variance():
    rows, _ = _drawn(4_000)
    one = np.zeros(3 * IDS, int)
    model = _fit(rows, groups=one)
    z_N = model.logits(rows.x)
    gradient_C = rows.x.T @ (rows.y_N - 1 / (1 + np.exp(-z_N)))
    variance = (model.weights_C @ model.weights_C) / (model.weights_C @ gradient_C)
    same = LogisticRegression(C=variance, tol=1e-8, max_iter=1000).fit(rows.x, rows.y_N)
    assert np.abs(model.weights_C - same.coef_[0]).max() < 0.02


def test_it_beats_every_single_penalty():
    rows, _ = _drawn(1_500)
    new, _ = _drawn(20_000, seed=1)
    own = roc_auc_score(new.y_N, _fit(rows).logits(new.x))
    for choice in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
        one = LogisticRegression(C=choice, max_iter=500).fit(rows.x, rows.y_N)
        assert own > roc_auc_score(new.y_N, one.decision_function(new.x)) + 0.002


def test_noise_alone_leaves_next_to_nothing():
    rows, _ = _drawn(2_000)
    rows = Rows(
        rows.x, np.random.default_rng(3).integers(0, 2, 2_000).astype(float), rows.weights_N
    )
    assert np.std(_fit(rows).logits(rows.x)) < 0.15


def test_many_rows_look_for_variances_in_some(monkeypatch):
    rows, _ = _drawn(8_000)
    every = _fit(rows)
    monkeypatch.setattr(fit_wide, "_MOST_TO_LOOK", 3_000)
    some = _fit(rows)
    assert not np.array_equal(every.weights_C, some.weights_C)
    assert np.abs(every.weights_C - some.weights_C).max() < 0.2
    assert np.abs(every.weights_C - some.weights_C).mean() < 0.03


def test_a_row_of_weight_two_is_two_rows():
    rows, _ = _drawn(2_000)
    twice = np.arange(2_000) % 3 == 0
    weighted = Rows(rows.x, rows.y_N, 1.0 + twice)
    order = np.concatenate([np.arange(2_000), np.flatnonzero(twice)])
    assert np.abs(_fit(weighted).weights_C - _fit(rows.where(order)).weights_C).max() < 1e-2


@pytest.mark.parametrize("is_event", [True, False])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_rows_that_do_not_differ_give_a_constant(is_event, count):
    rows, _ = _drawn(5)
    rows = Rows(rows.x[:count], np.ones(count), np.ones(count))
    model = _fit(rows, is_event)
    assert not model.weights_C.any()
    assert model.bias == pytest.approx(constant(rows, is_event).bias)


def test_labels_far_from_zero_keep_their_place():
    rows, _ = _drawn(3_000, is_event=False)
    far = Rows(rows.x, 1e6 + 1e3 * rows.y_N, rows.weights_N)
    assert _fit(far, False).logits(rows.x) == pytest.approx(
        1e6 + 1e3 * _fit(rows, False).logits(rows.x), rel=1e-5
    )


def test_noise_is_told_from_a_model_by_all_rows(monkeypatch):
    """Not by what the sampled ones determine, which is less than all do."""
    rows, _ = _drawn(6_000)
    monkeypatch.setattr(fit_wide, "_MOST_TO_LOOK", 1_000)
    for seed in range(3):
        rare_N = np.random.default_rng(seed).random(6_000) < 0.02
        assert not _fit(Rows(rows.x, rare_N.astype(float), rows.weights_N)).tells
    assert _fit(rows).tells
