"""Alarms of predictions whose level is wrong, and of models worse than a mean."""

import numpy as np

from mmoe.alarms import label_deviation, wrong_level


def _kinds(deviation: float = 0.0, **values: float) -> list[str]:
    metrics = {"task": {"rows": 20_000, **values}}
    return [alarm.kind for alarm in wrong_level(metrics, {"task": deviation})]


def test_levels_that_chance_does_not_explain():
    assert _kinds(calibration=71.7, ne=14.9, positives=100) == ["calibration", "worse_than_mean"]
    assert _kinds(calibration=0.3, ne=0.99, positives=100) == ["calibration"]
    assert not _kinds(calibration=1.9, ne=0.9, positives=1000)
    assert not _kinds(calibration=2.5, ne=0.9, positives=2)  # 5 predicted, 2 came
    assert not _kinds(calibration=None, ne=None, positives=0)
    assert not _kinds(calibration=9.0, ne=3.0, positives=9, rows=50)


def test_a_regression_beyond_its_own_deviation():
    deviation = label_deviation(np.array([1.0, 3.0, 100.0]), np.array([1.0, 1.0, 0.0]))
    assert deviation == 1.0
    assert _kinds(deviation, rmse=1.01) == ["worse_than_mean"]
    assert not _kinds(deviation, rmse=0.99)
