"""Thresholds of a split by time or by random, in bounded memory."""

import numpy as np
import pytest

from mmoe.config import SplitConfig
from mmoe.datasets.rows.splits import smallest_hashes, time_cuts
from mmoe.datasets.stream.splitters import TimeFit
from mmoe.datasets.values.hashing import mix64

SPLIT = SplitConfig(by="time", column="at")


def fitted(times, chunk):
    fit = TimeFit("at", "x")
    for start in range(0, len(times), chunk):
        fit.add(times[start : start + chunk], "a")
    return fit.finish()


@pytest.mark.parametrize(
    "times",
    [
        np.random.default_rng(0).integers(-50, 50, 1000),
        np.round(np.random.default_rng(0).normal(size=1000), 1),
    ],
    ids=["int", "real"],
)
@pytest.mark.parametrize("chunk", [7, 1000])
def test_moments_are_counted(times, chunk, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.stream.splitters._LEAST", 20)
    expected = np.unique(times + 0.0 if times.dtype.kind == "f" else times, return_counts=True)
    for mine, theirs in zip(fitted(times, chunk), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["int", "real"])
def test_many_moments_are_counted_coarsely_and_cut_nearby(kind, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.stream.splitters._MOST", 1_000)
    monkeypatch.setattr("mmoe.datasets.stream.splitters._LEAST", 100)
    rng = np.random.default_rng(0)
    times = rng.integers(0, 2**40, 50_000) if kind == "int" else rng.uniform(1, 2, 50_000)
    found = [fitted(times, chunk) for chunk in (999, 50_000)]
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(found[0][0]) <= 1_000
    validation, test = time_cuts(*found[0], SPLIT, "x")
    assert (times >= test).mean() == pytest.approx(0.1, abs=0.003)
    assert (times >= validation).mean() == pytest.approx(0.2, abs=0.003)


def test_negative_and_positive_reals_keep_their_order():
    times = np.array([-1e300, -2.5, -0.0, 0.0, 1e-300, 2.5])
    moments, counts = fitted(times, 2)
    np.testing.assert_array_equal(moments, [-1e300, -2.5, 0.0, 1e-300, 2.5])
    assert counts.tolist() == [1, 1, 2, 1, 1]


@pytest.mark.parametrize("rows", [1, 2, 1000, 300_000])
def test_ranks_among_hashes(rows):
    hashes = np.sort(mix64(np.arange(rows, dtype=np.uint64), 5))
    ranks = [0, rows // 3, rows - 1]
    assert smallest_hashes(rows, 5, ranks) == [int(hashes[rank]) for rank in ranks]
