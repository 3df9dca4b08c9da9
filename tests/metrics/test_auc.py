"""AUC, GAUC and the ROC against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from mmoe.metrics.auc import auc, grouped_auc, roc_points


@st.composite
def scored_rows(draw):
    """Few distinct scores, so that ties are the rule; both classes present."""
    n = draw(st.integers(2, 60))
    labels = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    labels[:2] = [0, 1]
    levels = draw(st.integers(1, 12))
    scores = np.array(draw(st.lists(st.integers(0, levels), min_size=n, max_size=n))) / levels
    weights = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    return labels, scores, np.array(weights) / 7


@given(scored_rows(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_auc_and_its_curve_equal_scikit_learn(rows, weighted):
    labels, scores, weights = rows
    weights = weights if weighted else None
    expected = roc_auc_score(labels, scores, sample_weight=weights)
    assert auc(labels, scores, weights) == pytest.approx(expected, abs=1e-12)
    found = roc_points(labels, scores, weights)
    fpr, tpr, _ = roc_curve(labels, scores, sample_weight=weights, drop_intermediate=False)
    assert found is not None
    np.testing.assert_allclose(found[0], fpr, atol=1e-12)
    np.testing.assert_allclose(found[1], tpr, atol=1e-12)


def test_auc_is_exact_and_ignores_the_order_of_rows():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 5001), rng.integers(0, 40, 5001).astype(np.float32)
    shuffled = rng.permutation(5001)
    pairs = np.sign(scores[labels == 1][:, None] - scores[labels == 0][None, :])
    expected = (1 + pairs).sum() / (2 * pairs.size)
    assert auc(labels, scores) == expected
    assert auc(labels[shuffled], scores[shuffled]) == expected
    assert auc(np.array([0, 1, 1]), np.full(3, 0.3)) == 0.5


@pytest.mark.parametrize("labels", [[], [0, 0], [1, 1, 1]])
def test_auc_needs_both_classes(labels):
    scores = np.linspace(0, 1, len(labels))
    assert auc(np.array(labels), scores) is roc_points(np.array(labels), scores) is None
    assert auc(np.array([0, 1]), np.array([0.1, 0.9]), np.array([1.0, 0.0])) is None


@given(scored_rows(), st.integers(1, 6), st.booleans())
@settings(deadline=None, max_examples=40)
def test_grouped_auc_is_the_impression_weighted_mean(rows, num_groups, weighted):
    labels, scores, _ = rows
    rng = np.random.default_rng(len(labels))
    groups = rng.integers(0, num_groups, len(labels)) * 1000
    weights = rng.integers(1, 9, len(labels)) / 4 if weighted else None
    values, sizes, counted = [], [], 0
    for group in np.unique(groups):
        mine = groups == group
        if labels[mine].min() < labels[mine].max():
            mine_weights = None if weights is None else weights[mine]
            values.append(roc_auc_score(labels[mine], scores[mine], sample_weight=mine_weights))
            sizes.append(mine.sum() if weights is None else weights[mine].sum())
            counted += int(mine.sum())
    found = grouped_auc(labels, scores, groups, weights)
    assert (found.groups, found.all_groups) == (len(values), len(np.unique(groups)))
    assert found.rows == counted
    if values:
        assert found.value == pytest.approx(np.average(values, weights=sizes), abs=1e-12)
    else:
        assert found.value is None


def test_grouped_auc_takes_text_keys_and_leaves_rows_without_a_key_out():
    labels, scores = np.array([0, 1, 0, 1]), np.array([0.9, 0.1, 0.2, 0.8])
    keys = np.array(["u1", None, "u1", "u1"], dtype=object)
    found = grouped_auc(labels, scores, keys)
    assert found == (0.5, 1, 1, 3)
    assert grouped_auc(labels, scores, np.full(4, np.nan)).value is None
