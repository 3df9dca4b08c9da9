"""Metrics of values, levels and classes, beside other implementations."""

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, log_loss, roc_auc_score

from mmoe.metrics import auc, task_metrics
from mmoe.metrics.task_kinds.levels import quadratic_kappa
from mmoe.metrics.task_kinds.regression import normalised_gini

RNG = np.random.default_rng(0)
VALUES = RNG.exponential(10, 200) * (RNG.random(200) < 0.4)
SCORES = np.round(VALUES / 30 + RNG.random(200), 1)


def test_gini_is_the_area_between_lorenz_curves():
    scores = RNG.permutation(200).astype(float)

    def area(order):
        return np.cumsum(VALUES[order]).sum() / VALUES.sum() - 100.5

    expected = area(np.argsort(-scores)) / area(np.argsort(-VALUES, kind="stable"))
    assert normalised_gini(VALUES, scores) == pytest.approx(expected, abs=0.02)
    assert normalised_gini(VALUES, VALUES) == 1
    assert normalised_gini(np.ones(3), np.arange(3.0)) is None
    events = (VALUES > 0).astype(float)
    assert normalised_gini(events, SCORES) == pytest.approx(2 * auc(events, SCORES) - 1)


def test_weights_are_repetitions():
    weights = RNG.integers(0, 4, 200)
    rows = np.repeat(np.arange(200), weights)
    expected = normalised_gini(VALUES[rows], SCORES[rows])
    assert normalised_gini(VALUES, SCORES, weights) == pytest.approx(expected)
    labels, decided = RNG.integers(1, 6, (2, 200)).astype(float)
    expected = cohen_kappa_score(labels[rows], decided[rows], weights="quadratic")
    assert quadratic_kappa(labels, decided, weights) == pytest.approx(expected)


def test_classes():
    labels = RNG.integers(0, 3, 200)
    logits = RNG.normal(size=(200, 3)) + 2 * np.eye(3)[labels]
    further = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    likeliest = further.argmax(axis=1).astype(float)
    weights = RNG.random(200)
    values, notes = task_metrics("multiclass", labels, likeliest, weights=weights, further=further)
    assert notes == []
    assert values["accuracy"] == pytest.approx(np.average(likeliest == labels, weights=weights))
    assert values["logloss"] == pytest.approx(log_loss(labels, further, sample_weight=weights))
    each = [roc_auc_score(labels == k, further[:, k], sample_weight=weights) for k in range(3)]
    assert values["macro_auc"] == pytest.approx(np.mean(each))


def test_what_cannot_be_computed_is_said():
    zeros = np.zeros(3)
    values, notes = task_metrics("ziln", zeros, np.ones(3), name="spend")
    assert (values["gini"], values["calibration"], values["rmse"]) == (None, None, 1)
    assert notes == ["spend: gini, calibration not computed: all 3 observed labels are 0"]
    _, notes = task_metrics("multiclass", zeros, zeros, name="genre", further=np.ones((3, 2)) / 2)
    assert notes == ["genre: macro_auc not computed: all rows have one class"]
    with pytest.raises(ValueError, match=r"row 1 .*the label is -1"):
        task_metrics("watch_time", np.array([0, -1.0]), np.ones(2))
    with pytest.raises(ValueError, match=r"further has shape \(1, 2\)"):
        task_metrics("multiclass", zeros, zeros, further=np.ones((1, 2)))


def test_constant_labels_have_neither_gini_nor_kappa():
    for seed in range(8):  # however the weights round
        rng = np.random.default_rng(seed)
        weights, labels = rng.random(7), np.full(7, np.float32(0.1))
        assert normalised_gini(labels, rng.random(7), weights) is None
        labels[2], weights[2] = 5.0, 0.0  # a row that does not count
        assert normalised_gini(labels, rng.random(7), weights) is None
        assert quadratic_kappa(np.full(7, 3.3), np.full(7, 3.3), weights) is None
