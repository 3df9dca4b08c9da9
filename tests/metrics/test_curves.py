"""Curves for the report: thinned without changing the picture, plain numbers for JSON."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.metrics.auc import roc_points
from mmoe.metrics.of_tasks import HISTOGRAM_BINS, ROC_POINTS, task_curves, thin_curve


def _rows(n=30_000, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.beta(0.6, 6, n)
    return (rng.random(n) < truth).astype(float), truth


def _distance(x, y, line_x, line_y):
    """From each point to the polyline, the largest."""
    start, step = np.c_[line_x, line_y][:-1], np.diff(np.c_[line_x, line_y], axis=0)
    offset = np.c_[x, y][:, None, :] - start
    along = (offset * step).sum(2) / np.maximum((step**2).sum(1), 1e-300)
    nearest = start + np.clip(along, 0, 1)[:, :, None] * step
    return np.hypot(*(np.c_[x, y][:, None, :] - nearest).transpose(2, 0, 1)).min(1).max()


def test_a_long_roc_is_thinned_without_visible_change():
    labels, truth = _rows()
    fpr, tpr = roc_points(labels, truth)
    x, y = thin_curve(fpr, tpr)
    assert len(fpr) > 10_000
    assert len(x) <= ROC_POINTS
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert _distance(fpr[::17], tpr[::17], x, y) < 0.002  # half a pixel of a 250-pixel picture
    assert np.trapezoid(y, x) == pytest.approx(np.trapezoid(tpr, fpr), abs=2e-4)


@given(st.integers(0, 2**32), st.integers(3, 40), st.floats(0.05, 4))
@settings(deadline=None, max_examples=40)
def test_thinning_keeps_its_promise_on_any_rising_curve(seed, points, jumps):
    rng = np.random.default_rng(seed)
    steps = rng.pareto(jumps, (300, 2)) * (rng.random((300, 2)) < 0.5)
    x, y = np.cumsum(np.vstack([[0, 0], steps]) / np.maximum(steps.sum(0), 1e-9), axis=0).T
    thin_x, thin_y = thin_curve(x, y, points)
    assert len(thin_x) <= points
    assert (thin_x[-1], thin_y[-1]) == (x[-1], y[-1])
    assert _distance(x, y, thin_x, thin_y) <= 2 / (points - 2) + 1e-9


def test_binary_curves_hold_what_the_report_draws():
    labels, truth = _rows(4000)
    observed = np.arange(4000) % 2 == 0
    curves = task_curves("binary", labels, truth**1.2, observed, oracle=truth)
    assert list(curves) == ["roc", "oracle_roc", "calibration", "histogram"]
    assert json.loads(json.dumps(curves)) == curves
    assert len(curves["calibration"]) == 20
    assert sum(each["rows"] for each in curves["calibration"]) == 2000
    assert sum(curves["histogram"]["rows"]) == 2000
    edges = curves["histogram"]["edges"]
    assert len(edges) == HISTOGRAM_BINS + 1
    assert edges[0] == 0.0
    assert edges[-1] == pytest.approx((truth**1.2)[observed].max())
    # The same order of rows, so the same curve: a power does not change ranks.
    assert curves["roc"] == curves["oracle_roc"]


def test_what_cannot_be_drawn_is_null():
    one_class = task_curves("binary", np.zeros(3), np.array([0.1, 0.2, 0.3]))
    assert one_class["roc"] is None
    assert one_class["oracle_roc"] is None
    assert sum(one_class["histogram"]["rows"]) == 3
    nothing = task_curves("binary", np.zeros(3), np.full(3, 0.1), np.zeros(3, bool))
    assert nothing["calibration"] == []
    assert nothing["histogram"] == {"edges": [], "rows": []}


def test_regression_has_calibration_and_histogram():
    rng = np.random.default_rng(0)
    predictions = rng.normal(5, 2, 1000)
    curves = task_curves("regression", predictions + rng.normal(size=1000), predictions)
    assert curves["roc"] is None
    assert curves["histogram"]["edges"][0] == pytest.approx(predictions.min())
    for each in curves["calibration"]:
        assert each["positive_rate"] == pytest.approx(each["mean_prediction"], abs=0.6)
    with pytest.raises(ValueError, match="task 'buy', row 1"):
        task_curves("binary", np.zeros(2), np.array([0.1, np.nan]), name="buy")


def test_one_value_only_still_has_a_histogram():
    for kind, value in (("binary", 0.0), ("binary", 1.0), ("regression", -3.0)):
        histogram = task_curves(kind, np.zeros(4), np.full(4, value))["histogram"]
        assert sum(histogram["rows"]) == 4
        assert np.diff(histogram["edges"]).min() > 0
