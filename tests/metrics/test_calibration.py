"""Log-loss, normalised entropy, calibration and ECE."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from mmoe.metrics.calibration import (
    calibration_bins,
    calibration_ratio,
    expected_calibration_error,
    log_loss,
    normalised_entropy,
)


@st.composite
def predicted_rows(draw):
    n = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    labels = rng.integers(0, 2, n)
    labels[:2] = [0, 1]
    predictions = np.round(rng.random(n), draw(st.integers(0, 6)))
    weights = rng.integers(1, 30, n) / 3 if draw(st.booleans()) else None
    return labels, predictions, weights


@given(predicted_rows())
@settings(deadline=None, max_examples=50)
def test_log_loss_and_normalised_entropy_equal_scikit_learn(rows):
    labels, predictions, weights = rows
    loss = sk.log_loss(labels, predictions, sample_weight=weights)
    assert log_loss(labels, predictions, weights) == pytest.approx(loss, rel=1e-9)
    base = np.full(len(labels), np.average(labels, weights=weights))
    expected = loss / sk.log_loss(labels, base, sample_weight=weights)
    assert normalised_entropy(labels, predictions, weights) == pytest.approx(expected, rel=1e-9)


def test_one_class_and_sure_mistakes():
    assert log_loss(np.ones(2), np.array([0.5, 1.0])) == pytest.approx(np.log(2) / 2)
    assert normalised_entropy(np.ones(2), np.array([0.5, 1.0])) is None
    assert calibration_ratio(np.zeros(2), np.array([0.5, 1.0])) is None
    for label in (0, 1):
        loss = log_loss(np.array([label]), np.array([1.0 - label]))
        assert loss == pytest.approx(36.04, abs=0.01)


def test_calibration_weighs_rows():
    labels, predictions = np.array([1, 0, 1]), np.array([0.5, 0.5, 0.25])
    assert calibration_ratio(labels, predictions) == pytest.approx(1.25 / 2)
    assert calibration_ratio(labels, predictions, np.array([1, 3, 2])) == pytest.approx(2.5 / 3)


def test_bins_equal_scikit_learns_quantile_bins():
    rng = np.random.default_rng(0)
    predictions = rng.beta(0.5, 5, 20_000)
    labels = (rng.random(20_000) < predictions).astype(int)
    rate, mean = calibration_curve(labels, predictions, n_bins=20, strategy="quantile")
    found = calibration_bins(labels, predictions, bins=20)
    assert [each.rows for each in found] == [1000] * 20
    np.testing.assert_allclose([each.mean_prediction for each in found], mean, atol=1e-4)
    np.testing.assert_allclose([each.mean_label for each in found], rate, atol=2e-3)


@given(predicted_rows(), st.integers(1, 25))
@settings(deadline=None, max_examples=50)
def test_bins_share_out_all_rows_and_keep_ties_together(rows, bins):
    labels, predictions, weights = rows
    found = calibration_bins(labels, predictions, weights, bins)
    assert len(found) <= bins
    assert sum(each.rows for each in found) == len(labels)
    means = [each.mean_prediction for each in found]
    assert means == sorted(means)
    total = len(labels) if weights is None else weights.sum()
    assert sum(each.weight for each in found) == pytest.approx(total)
    assert sum(each.weight * each.mean_label for each in found) == pytest.approx(
        labels.sum() if weights is None else (weights * labels).sum()
    )


def test_a_tie_on_the_edge_of_a_bin_ignores_the_order_of_weights():
    """The middle of 0.5 is 3/4 of the weight, where a bin ends; added up otherwise, a bit less."""
    weights = np.array([0.1, 0.3, 0.2, 0.3, 0.1])
    predictions, labels = np.array([0.1, 0.1, 0.1, 0.5, 0.9]), np.array([0, 1, 0, 1, 1])
    expected = calibration_bins(labels, predictions, weights, bins=4)
    for order in itertools.permutations(range(5)):
        o = list(order)
        assert calibration_bins(labels[o], predictions[o], weights[o], bins=4) == expected


def test_ece_by_hand():
    labels, predictions = np.array([0, 1, 1, 0]), np.array([0.9, 0.8, 0.9, 0.8])
    assert expected_calibration_error(labels, predictions, bins=1) == pytest.approx(0.35)
    predictions, weights = np.array([0.2, 0.2, 0.6, 0.6]), np.array([3.0, 1.0, 3.0, 1.0])
    expected = 0.5 * abs(0.2 - 0.25) + 0.5 * abs(0.6 - 0.75)
    assert expected_calibration_error(labels, predictions, weights) == pytest.approx(expected)


def test_equal_predictions_make_one_bin():
    (only,) = calibration_bins(np.array([0, 1, 1, 0]), np.full(4, 0.1))
    assert (only.mean_prediction, only.mean_label) == (pytest.approx(0.1), 0.5)
    assert calibration_bins(np.zeros(0), np.zeros(0)) == []
    assert calibration_bins(np.zeros(2), np.zeros(2), np.zeros(2)) == []
