"""Curves of labels, and the way back from them."""

from dataclasses import replace

import numpy as np
import pytest

from mmoe.datasets.labels.targets import TargetScale, curved, fit_scale, limits, straightened

ROWS = 4000


def _labels(shape: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=ROWS)
    return {
        "amounts": np.exp(4 + 1.2 * normal),
        "spend": np.where(rng.random(ROWS) < 0.6, 0, np.exp(normal)),
        "delays": 8 * normal + np.where(rng.random(ROWS) < 0.2, np.exp(3 + 0.8 * normal), -5),
        "shortfalls": -np.exp(normal),
        "ratings": np.clip(np.round(3 + normal), 1, 5),
        "heights": 170 + 9 * normal,
        "both sides": rng.standard_t(2, ROWS),
    }[shape]


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0, 1.6, 2.0])
def test_a_curve_has_an_inverse(power):
    u_N = np.linspace(-30, 30, 101)
    assert straightened(curved(u_N, power), power, 1e9) == pytest.approx(u_N)
    assert np.abs(straightened(np.array([-1e9, 1e9]), power, 50.0)).max() <= 50 * (1 + 1e-9)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("shape", "bends"),
    [
        ("amounts", True), ("spend", True), ("delays", True), ("shortfalls", True),
        ("ratings", False), ("heights", False), ("both sides", False),
    ],
)  # fmt: skip
def test_labels_with_a_long_tail_on_one_side_are_curved_in_any_unit(shape, bends, unit):
    labels_N = _labels(shape)
    one, found = fit_scale(labels_N, "auto"), fit_scale(labels_N * unit, "auto")
    assert (found is not None) == bends
    if one is not None and found is not None:
        assert found.power == one.power
        assert found.targets_of(labels_N * unit) == pytest.approx(one.targets_of(labels_N))
        assert abs(found.targets_of(labels_N * unit).std() - 1) < 1e-6


def test_means_come_back_as_means():
    """The inverse alone is too low by a third of it."""
    rng = np.random.default_rng(1)
    mean_N = 3 + rng.normal(size=ROWS)
    labels_N = np.exp(mean_N + 0.9 * rng.normal(size=ROWS))
    scale = fit_scale(labels_N, "log")
    assert scale is not None
    scale = replace(scale, low=0.0, high=2 * labels_N.max())
    half = ROWS // 2
    expected_N = scale.targets_of(np.exp(mean_N))  # what a squared error of targets would learn
    plain_N = scale.of(expected_N)
    found = scale.unbiased(plain_N[:half], labels_N[:half], np.ones(half))
    assert plain_N[half:].mean() < 0.75 * labels_N[half:].mean()
    assert found.of(expected_N[half:]).mean() == pytest.approx(labels_N[half:].mean(), rel=0.06)
    one = np.array([found.of(expected_N[n : n + 1])[0] for n in range(50)])
    assert (one == found.of(expected_N[:50])).all()


def test_predictions_stay_near_the_labels_of_training():
    low, high = limits(10.0, 110.0)
    assert (low, high) == (5.0, 115.0)
    far = np.array([-1e30, 1e30])
    straight = TargetScale(50.0, 20.0, low=low, high=high)
    bent = TargetScale(0.0, 1.0, power=0.0, low=low, high=high, residuals=(-0.1, 0.1))
    for scale in (straight, bent):
        assert scale.of(far).tolist() == [5.0, 115.0]
    assert limits(0.0, 4.0)[0] == 0.0
    assert limits(-4.0, -1.0)[1] == pytest.approx(-0.85)
