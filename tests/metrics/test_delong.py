"""DeLong's paired interval against its definition, counted pair by pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from mmoe.metrics.intervals import auc_difference_interval, auc_interval


def _variance_by_definition(labels, scores_a, scores_b):
    """V10 and V01 of DeLong et al. 1988 from the full matrix of pairs."""

    def kernel(scores):
        difference = scores[labels == 1][:, None] - scores[labels == 0][None, :]
        return 0.5 * (1 + np.sign(difference))

    pairs = kernel(scores_a) - kernel(scores_b)
    rows, columns = pairs.mean(axis=1), pairs.mean(axis=0)
    return np.var(rows, ddof=1) / len(rows) + np.var(columns, ddof=1) / len(columns)


@given(st.integers(4, 80), st.integers(2, 30), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_equals_the_definition_with_ties(n, levels, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    labels[:4] = [0, 0, 1, 1]
    scores_a = rng.integers(0, levels, n).astype(float)
    scores_b = scores_a + rng.integers(-2, 3, n)
    found = auc_difference_interval(labels, scores_a, scores_b)
    expected = np.sqrt(_variance_by_definition(labels, scores_a, scores_b))
    assert found.auc_a == pytest.approx(roc_auc_score(labels, scores_a))
    assert found.auc_b == pytest.approx(roc_auc_score(labels, scores_b))
    assert found.difference == pytest.approx(found.auc_a - found.auc_b, abs=1e-12)
    assert found.standard_error == pytest.approx(expected, abs=1e-12)
    assert found.high - found.low == pytest.approx(2 * 1.959964 * expected, rel=1e-6, abs=1e-9)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    # Two equally good scores of the same rows: the true difference is 0. 300 samples of 120 rows;
    # a 95 % interval misses 15 of them, and more than 30 with probability below 0.001.
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(300):
        labels = rng.integers(0, 2, 120)
        signal = labels + rng.normal(0, 1.5, 120)
        a, b = signal + rng.normal(0, 1, 120), signal + rng.normal(0, 1, 120)
        found = auc_difference_interval(labels, a, b)
        misses += not found.low <= 0 <= found.high
    assert 3 <= misses <= 30


def test_equal_scores_differ_by_nothing_and_swapped_ones_by_the_opposite():
    found = auc_difference_interval(np.array([0, 0, 1, 1]), np.arange(4), np.arange(4) * 10)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)
    rng = np.random.default_rng(3)
    labels, a, b = rng.integers(0, 2, 50), rng.random(50), rng.random(50)
    there, back = auc_difference_interval(labels, a, b), auc_difference_interval(labels, b, a)
    assert there.difference == pytest.approx(-back.difference)
    assert there.p_value == pytest.approx(back.p_value) != pytest.approx(1)


@pytest.mark.parametrize(("labels", "scores_b", "confidence", "message"), [
    ([0, 0, 0, 1], [1, 2, 3, 4], 0.95, "1 positive and 3 negative"),
    ([0, 0, 1, 1], [1, 2, 3], 0.95, r"scores_b has shape \(3,\), labels \(4,\)"),
    ([0, 0, 1, 1], [1, 2, np.nan, 4], 0.95, "scores_b, row 2: the score is NaN"),
    ([0, 0, 1, 1], [1, 2, 3, 4], 95, "confidence must be between 0 and 1, got 95"),
])  # fmt: skip
def test_refuses(labels, scores_b, confidence, message):
    with pytest.raises(ValueError, match=message):
        auc_difference_interval(np.array(labels), np.arange(4), np.array(scores_b), confidence)


def _by_definition(labels, scores, weights):
    """Of the full matrix of pairs, weighted: AUC and its variance."""
    p, n = labels == 1, labels == 0
    pairs = 0.5 * (1 + np.sign(scores[p][:, None] - scores[n][None, :]))
    of_p, of_n = (
        np.average(pairs, axis=1, weights=weights[n]),
        np.average(pairs, axis=0, weights=weights[p]),
    )
    value = np.average(of_p, weights=weights[p])
    terms = [
        (w**2 * (v - value) ** 2).sum() / w.sum() ** 2 * len(w) / (len(w) - 1)
        for w, v in ((weights[p], of_p), (weights[n], of_n))
    ]
    return value, sum(terms)


@given(st.integers(4, 80), st.integers(2, 30), st.booleans(), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_an_interval_of_one_auc_equals_the_definition(n, levels, weighted, seed):
    rng = np.random.default_rng(seed)
    labels, scores = rng.integers(0, 2, n), rng.integers(0, levels, n).astype(float)
    labels[:4] = [0, 0, 1, 1]
    weights = rng.random(n) + 0.1 if weighted else np.ones(n)
    found = auc_interval(labels, scores, weights if weighted else None)
    value, variance = _by_definition(labels, scores, weights)
    assert found.auc == pytest.approx(value, abs=1e-12)
    assert found.standard_error == pytest.approx(np.sqrt(variance), abs=1e-9)
    assert 0 <= found.low <= found.auc <= found.high <= 1
    if 0 < value < 1:
        logit = np.log([x / (1 - x) for x in (found.low, value, found.high)])
        reach = 1.959964 * np.sqrt(variance) / (value * (1 - value))
        np.testing.assert_allclose(np.diff(logit), reach, rtol=1e-4, atol=1e-6)


def test_weights_of_whole_classes_and_rows_without_weight_change_nothing():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 200), rng.normal(size=200)
    plain = auc_interval(labels, scores)
    assert auc_interval(labels, scores, np.where(labels == 1, 1.0, 8.0)) == pytest.approx(plain)
    more = np.concatenate([labels, [0, 1]]), np.concatenate([scores, [9.0, -9.0]])
    assert auc_interval(*more, np.append(np.ones(200), [0, 0])) == pytest.approx(plain)


def test_no_interval_of_one_row_of_a_class():
    assert auc_interval(np.array([0, 0, 1]), np.arange(3)) is None
    with pytest.raises(ValueError, match="confidence must be between 0 and 1, got 95"):
        auc_interval(np.array([0, 0, 1, 1]), np.arange(4), confidence=95)
