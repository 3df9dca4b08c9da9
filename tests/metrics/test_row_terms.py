"""Terms of rows: their squares add up to the variance of a metric, and of differences."""

import numpy as np
import pytest

from mmoe.metrics import ObservedRows, auc, auc_difference_interval
from mmoe.metrics.intervals import of_predictions, r_squared, row_terms


@pytest.fixture(name="rows")
def _rows():
    """Labels, and two predictions for them, of 400 rows."""
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.3).astype(float)
    one = labels + rng.normal(size=400)
    return labels, one, one + rng.normal(0, 0.5, 400)


def _terms(metric, labels, predictions, weights=None):
    rows = ObservedRows(
        labels=labels, predictions=predictions, weights=weights, groups=None, oracle=None
    )
    terms = row_terms(metric, rows)
    assert terms is not None
    return terms


def test_of_a_difference_of_aucs_they_are_delongs(rows):
    labels, one, two = rows
    one, two = np.round(one, 1), np.round(two, 1)  # ties
    expected = auc_difference_interval(labels, one, two).standard_error
    found = _terms("auc", labels, one) - _terms("auc", labels, two)
    assert (found**2).sum() ** 0.5 == pytest.approx(expected, rel=1e-12)


def _metric(metric, labels, predictions, weights):
    if metric == "auc":
        return auc(labels, predictions, weights)
    errors = predictions - labels
    if metric == "mae":
        return np.average(np.abs(errors), weights=weights)
    squares = np.average(errors**2, weights=weights)
    if metric == "rmse":
        return squares**0.5
    mean = np.average(labels, weights=weights)
    return 1 - squares / np.average((labels - mean) ** 2, weights=weights)


@pytest.mark.parametrize("metric", ["auc", "rmse", "mae", "r2"])
@pytest.mark.parametrize("weighted", [False, True])
def test_they_say_how_the_metric_moves_with_a_row(rows, metric, weighted):
    """The derivative by a row's weight, times that weight, up to the n − 1 in the variance."""
    labels, predictions, _ = rows
    weights = np.random.default_rng(1).uniform(0.5, 2, 400) if weighted else np.ones(400)
    terms = _terms(metric, labels, predictions, weights)
    for row in (0, 7, 250):
        moved = weights.copy()
        moved[row] *= 1 + 1e-6
        change = _metric(metric, labels, predictions, moved)
        change -= _metric(metric, labels, predictions, weights)
        assert terms[row] == pytest.approx(change / 1e-6, rel=0.01, abs=1e-7)


def test_r_squared_is_scikit_learns(rows):
    from sklearn.metrics import r2_score

    labels, predictions, _ = rows
    found = r_squared(of_predictions(labels, predictions))
    assert found == pytest.approx(r2_score(labels, predictions))
    assert r_squared(of_predictions(np.ones(3), np.zeros(3))) is None


def test_too_few_rows_and_other_metrics_have_none():
    one_positive = of_predictions(np.array([0, 0, 1.0]), np.arange(3.0))
    assert row_terms("auc", one_positive) is None
    assert row_terms("logloss", one_positive) is None
    assert row_terms("rmse", of_predictions(np.ones(1), np.ones(1))) is None
    assert row_terms("r2", of_predictions(np.ones(3), np.arange(3.0))) is None
